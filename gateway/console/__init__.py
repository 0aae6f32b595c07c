"""The ops console: one page that shows what the gateway and its versions do."""
