"""What the log of mutations does inside of a Redis server, in Lua: each script is one atomic step.

Numbers stay text: Lua's own have 53 bits.
"""

from __future__ import annotations

# KEYS: facts, stream. Defines `last` and `tag`, where the log ends.
_TAIL = """
local last = redis.call('HGET', KEYS[1], 'last') or '0'
local tag = redis.call('HGET', KEYS[1], 'tag') or string.rep('\\0', 8)
"""

TAIL = _TAIL + "return {last, tag}"

# KEYS: facts, stream, one per mark. ARGV: after_seq, its tag if known, the seconds that marks live, the
# number of records; for each last_seq, tag, sealed record; then the marks.
APPEND = (
    _TAIL
    + """
local after, known, remember_s, num_records = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local first_mark = 5 + 3 * num_records
if last == '0' and redis.call('EXISTS', KEYS[2]) == 1 then
    return {'headless', last, tag}
end
if last ~= after then
    -- Perhaps these very records are here, and the connection broke before its client knew.
    if num_records > 0 then
        local own_seq, own_tag = ARGV[first_mark - 3], ARGV[first_mark - 2]
        local there = redis.call('XRANGE', KEYS[2], own_seq .. '-0', own_seq .. '-0')[1]
        if there and string.sub(there[2][2], 33, 40) == own_tag then
            -- Writes something, so that this connection too has something to wait for.
            redis.call('HSET', KEYS[1], 'last', last)
            return {'done', last, tag}
        end
    end
    return {'moved', last, tag}
end
if known ~= '' and known ~= tag then
    return {'replaced', last, tag}
end
if not string.find(redis.call('INFO', 'persistence'), 'aof_enabled:1', 1, true) then
    return {'volatile'}
end
for place = 5, first_mark - 1, 3 do
    redis.call('XADD', KEYS[2], ARGV[place] .. '-0', 'record', tag .. ARGV[place + 2])
    last, tag = ARGV[place], ARGV[place + 1]
end
redis.call('HSET', KEYS[1], 'last', last, 'tag', tag)
for place = 3, #KEYS do
    redis.call('SET', KEYS[place], ARGV[first_mark + place - 3], 'EX', remember_s)
end
return {'done', last, tag}
"""
)

# KEYS: facts, stream. ARGV: after_seq + 1, max_bytes, the bytes of a record's header.
READ = (
    _TAIL
    + """
local from, max_bytes, header_bytes = ARGV[1] .. '-0', tonumber(ARGV[2]), tonumber(ARGV[3])
local found, num_bytes = {}, 0
while true do
    local page = redis.call('XRANGE', KEYS[2], from, '+', 'COUNT', 16)
    for _, entry in ipairs(page) do
        num_bytes = num_bytes + #entry[2][2] - header_bytes
        if #found > 0 and num_bytes > max_bytes then
            return {last, tag, found}
        end
        found[#found + 1] = entry[1]
        found[#found + 1] = entry[2][2]
    end
    if #page < 16 then
        return {last, tag, found}
    end
    from = '(' .. page[#page][1]
end
"""
)

# KEYS: facts, stream.
FIRST = (
    _TAIL
    + """
local first = redis.call('XRANGE', KEYS[2], '-', '+', 'COUNT', 1)[1]
return {last, tag, first and {first[1], first[2][2]} or {}}
"""
)

FIND = "return redis.call('GET', KEYS[1])"

# KEYS: readers' positions, readers' times. ARGV: reader, seq. The server's clock is the same for all.
HOLD = """
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('ZADD', KEYS[2], redis.call('TIME')[1], ARGV[1])
"""

# As HOLD, without a seq.
RELEASE = """
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('ZREM', KEYS[2], ARGV[1])
"""

# KEYS: stream, readers' positions, readers' times. ARGV: through_seq, the seconds that readers live.
TRUNCATE = """
local oldest = tonumber(redis.call('TIME')[1]) - tonumber(ARGV[2])
for _, reader in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', '(' .. oldest)) do
    redis.call('HDEL', KEYS[2], reader)
    redis.call('ZREM', KEYS[3], reader)
end
local through = tonumber(ARGV[1])
for _, seq in ipairs(redis.call('HVALS', KEYS[2])) do
    through = math.min(through, tonumber(seq))
end
redis.call('XTRIM', KEYS[1], 'MINID', '=', string.format('%.0f-0', through + 1))
"""
