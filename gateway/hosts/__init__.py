"""Several hosts behind one Envoy: which host gets a request, and what is done on all of them."""
