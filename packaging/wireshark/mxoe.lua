-- MX over Ethernet for Wireshark and tshark: ethertype 0x86DF, and the same frames carried by UDP (port 34527).
--
-- Isthmus, Apache-2.0 OR MIT. docs/operate/capture.md says how to install it and what it shows; docs/spec/mxoe.md has the layouts.
-- Tested with Wireshark 4.0, whose Lua is 5.2; nothing in it is meant to need that one: 4.4 and later have Lua 5.4.
--
-- A frame that a board drops without an answer has `mxoe.malformed`, whose value is the reason that the daemon counts it under.
-- Lengths are judged by what was on the wire. What a capture has cut off is neither shown nor called malformed.

local mxoe = Proto("mxoe", "MX over Ethernet")
local carrier = Proto("mxoe_udp", "MX over Ethernet, carried by UDP")

local ETHERTYPE, UDP_PORT = 0x86df, 34527
local ETHERNET_BYTES, HEADER_BYTES, FRAME_BYTES_MIN = 14, 16, 60
local RAW_FRAME_BYTES_MAX, NAME_BYTES_MAX = 1024, 80
local MX_FRAGMENT_BYTES, MX_REPLY_BYTES, MX_BLOCK_FRAMES = 4096, 4096, 8
local OPEN_MX, MX = 0, 1
local UNKNOWN_PEER, UNSET_SESSION = 0xffff, 0xffffffff
local BODY = 2 -- Offset of the body in what the Ethernet dissector hands on: behind the peer index.

local RAW, HOST_QUERY, HOST_REPLY, TRUC, CONNECT, TINY, SMALL, MEDIUM = 1, 3, 4, 35, 36, 37, 38, 39
local RNDV, PULL, PULL_REPLY, NOTIFY, NACK_LIB, NACK_MCP = 40, 41, 42, 43, 44, 45

local TYPES = {
    [0] = "NONE", [1] = "RAW", [2] = "MFM_NIC_REPLY", [3] = "HOST_QUERY", [4] = "HOST_REPLY", [32] = "ETHER_UNICAST",
    [33] = "ETHER_MULTICAST", [34] = "ETHER_NATIVE", [35] = "TRUC", [36] = "CONNECT", [37] = "TINY", [38] = "SMALL",
    [39] = "MEDIUM", [40] = "RNDV", [41] = "PULL", [42] = "PULL_REPLY", [43] = "NOTIFY", [44] = "NACK_LIB",
    [45] = "NACK_MCP", [255] = "MAX",
}
local NOT_SPOKEN = { [2] = true, [32] = true, [33] = true, [34] = true }
local NACKS = { [0] = "none", [1] = "bad endpoint", [2] = "endpoint closed", [3] = "bad session", [4] = "bad RDMA window" }
local STATUSES = { [0] = "success", [11] = "bad key" }
local TRUC_TYPES = { [0x55] = "ack" }

mxoe.prefs.dialect = Pref.enum("Dialect", OPEN_MX, "Nothing in a frame says it, and MEDIUM and PULL differ: what the boards are set to",
    { { "open-mx", "Open-MX mode", OPEN_MX }, { "mx", "MX mode", MX } }, false)
mxoe.prefs.frame_bytes_max = Pref.uint("Longest frame in Open-MX mode", 9000,
    "In bytes, Ethernet header included: places of fragments and numbers of frames follow from it (MTU + 14, or what Open-MX calls the MTU)")
mxoe.prefs.block_frames = Pref.uint("Frames of a block in Open-MX mode", 32, "That one PULL asks for at most")
mxoe.prefs.ethertype = Pref.uint("Another ethertype", ETHERTYPE, "Of boards that were built with another one; in decimal. 34527 is always shown")

local f, fields = {}, {}
local function field(name, make, ...)
    f[name] = make("mxoe." .. name, ...)
    fields[#fields + 1] = f[name]
end

field("dst_src_peer_index", ProtoField.uint16, "Sender's number at the receiver", base.DEC)
field("type", ProtoField.uint8, "Type", base.DEC, TYPES)
field("dst_endpoint", ProtoField.uint8, "Destination endpoint", base.DEC)
field("src_endpoint", ProtoField.uint8, "Source endpoint", base.DEC)
field("session", ProtoField.uint32, "Session of the destination", base.HEX)
field("length", ProtoField.uint32, "Length", base.DEC)
for name, text in pairs({ lib_seqnum = "Number", lib_piggyack = "Acknowledges all before", send_seq = "Acknowledges again",
    target_recv_seqnum_start = "Expects next" }) do
    field(name, ProtoField.uint16, text, base.HEX)
    field(name .. ".number", ProtoField.uint16, "Number in its session", base.DEC, nil, 0x3fff)
    field(name .. ".sesnum", ProtoField.uint16, "Session number", base.DEC, nil, 0xc000)
end
field("match_info", ProtoField.uint64, "Match info", base.HEX)
field("frag_length", ProtoField.uint16, "Fragment's length", base.DEC)
field("frag_seqnum", ProtoField.uint8, "Fragment", base.DEC)
field("frag_pipeline", ProtoField.uint8, "Pipeline (log2 of the fragment size)", base.DEC)
field("frag_offset", ProtoField.uint64, "Fragment's place in the message", base.DEC)
field("msg_length", ProtoField.uint32, "Message length", base.DEC)
field("pulled_rdma_id", ProtoField.uint32, "Region", base.DEC)
field("pulled_rdma_seqnum", ProtoField.uint8, "Use of the region", base.DEC)
field("pulled_rdma_offset", ProtoField.uint32, "Offset in the region's first frame", base.DEC)
field("total_length", ProtoField.uint32, "Bytes of the transfer", base.DEC)
field("pull_handle", ProtoField.uint32, "Pull handle", base.HEX)
field("magic", ProtoField.uint32, "Magic", base.HEX)
field("first_frame_offset", ProtoField.uint32, "Not asked for of the first frame", base.DEC)
field("block_length", ProtoField.uint32, "Bytes of the block", base.DEC)
field("frame_index", ProtoField.uint32, "First frame", base.DEC)
field("frames", ProtoField.uint32, "Frames of the block", base.DEC)
field("frame_seqnum", ProtoField.uint8, "Frame (modulo 256)", base.DEC)
field("frame_length", ProtoField.uint16, "Bytes of the frame", base.DEC)
field("msg_offset", ProtoField.uint32, "Place in the transfer", base.DEC)
field("nack_type", ProtoField.uint8, "Refused", base.DEC, NACKS)
field("src_dst_peer_index", ProtoField.uint16, "Receiver's number at the sender", base.DEC)
field("is_reply", ProtoField.uint8, "Reply", base.DEC, { [0] = "request", [1] = "reply" })
field("connect_seqnum", ProtoField.uint8, "Number of the connect", base.DEC)
field("src_session_id", ProtoField.uint32, "Session of who asks", base.HEX)
field("target_session_id", ProtoField.uint32, "Session of who replies", base.HEX)
field("app_key", ProtoField.uint32, "Key", base.HEX)
field("status", ProtoField.uint8, "Status", base.DEC, STATUSES)
field("truc_type", ProtoField.uint8, "Kind", base.HEX, TRUC_TYPES)
field("ack_session_id", ProtoField.uint32, "Session of the destination, again", base.HEX)
field("acknum", ProtoField.uint32, "Number of the acknowledgement", base.DEC)
field("host_magic", ProtoField.uint32, "Magic of the query", base.HEX)
field("hostname", ProtoField.string, "Name")
field("announced_nic", ProtoField.ether, "Announced board")
field("announced_serial", ProtoField.uint32, "Serial of its daemon", base.HEX)
field("data", ProtoField.bytes, "Data")
field("padding", ProtoField.bytes, "Padding")
field("malformed", ProtoField.string, "Dropped without an answer")
field("cut", ProtoField.bool, "Cut by the capture")
field("request_in", ProtoField.framenum, "Request in", base.NONE, frametype.REQUEST)
field("response_in", ProtoField.framenum, "Response in", base.NONE, frametype.RESPONSE)
field("rndv_in", ProtoField.framenum, "RNDV in", base.NONE, frametype.REQUEST)
field("response_time", ProtoField.relative_time, "Time since the request")
mxoe.fields = fields

local expert_of = {
    malformed = ProtoExpert.new("mxoe.expert.malformed", "Dropped without an answer", expert.group.MALFORMED, expert.severity.ERROR),
    block = ProtoExpert.new("mxoe.expert.block", "PULL of too many frames", expert.group.PROTOCOL, expert.severity.WARN),
    frame = ProtoExpert.new("mxoe.expert.frame", "Frame number and place disagree", expert.group.PROTOCOL, expert.severity.WARN),
    session = ProtoExpert.new("mxoe.expert.session", "Sent without a session", expert.group.PROTOCOL, expert.severity.WARN),
    refused = ProtoExpert.new("mxoe.expert.refused", "Refused", expert.group.RESPONSE_CODE, expert.severity.NOTE),
}
mxoe.experts = { expert_of.malformed, expert_of.block, expert_of.frame, expert_of.session, expert_of.refused }
local carrier_short = ProtoExpert.new("mxoe_udp.expert.short", "No whole Ethernet header", expert.group.MALFORMED, expert.severity.ERROR)
carrier.experts = { carrier_short }

-- Layouts: field, offset in the body, bytes. `head` is all that must be there before anything is read.
local ENDPOINTS = { { "dst_endpoint", 1, 1 }, { "src_endpoint", 2, 1 } }
local function layout(head, ...)
    local made = { head = head }
    for _, list in ipairs({ ... }) do
        for _, entry in ipairs(list) do made[#made + 1] = entry end
    end
    return made
end
local MESSAGE = { { "lib_seqnum", 8, 2 }, { "lib_piggyack", 10, 2 }, { "match_info", 12, 8 }, { "session", 20, 4 } }
local EAGER = layout(24, ENDPOINTS, { { "length", 4, 2 } }, MESSAGE)
local CONNECT_HEAD = { { "length", 4, 1 }, { "lib_seqnum", 8, 2 }, { "src_dst_peer_index", 10, 2 }, { "src_session_id", 16, 4 } }
local CONNECT_TAIL = { { "target_recv_seqnum_start", 24, 2 }, { "is_reply", 26, 1 }, { "connect_seqnum", 27, 1 } }
local CONNECT_REPLY = layout(32, ENDPOINTS, CONNECT_HEAD, { { "target_session_id", 20, 4 } }, CONNECT_TAIL, { { "status", 28, 1 } })
local FRAGMENT = { { "frag_length", 24, 2 }, { "frag_seqnum", 26, 1 } }
local REGION = { { "session", 4, 4 }, { "total_length", 8, 4 } }

local HEADER = { { "dst_src_peer_index", -BODY, 2 } }
local LAYOUTS = {
    [RAW] = layout(1),
    [HOST_QUERY] = layout(16, { { "src_dst_peer_index", 2, 2 }, { "host_magic", 8, 4 } }),
    [HOST_REPLY] = layout(16, { { "length", 1, 1 }, { "src_dst_peer_index", 2, 2 }, { "host_magic", 8, 4 } }),
    [TRUC] = layout(28, ENDPOINTS, { { "length", 4, 1 }, { "session", 8, 4 }, { "truc_type", 12, 1 }, { "lib_seqnum", 14, 2 },
        { "ack_session_id", 16, 4 }, { "acknum", 20, 4 }, { "send_seq", 24, 2 } }),
    [CONNECT] = layout(32, ENDPOINTS, CONNECT_HEAD, { { "app_key", 20, 4 } }, CONNECT_TAIL),
    [TINY] = EAGER,
    [SMALL] = EAGER,
    [RNDV] = layout(32, ENDPOINTS, { { "length", 4, 2 } }, MESSAGE, { { "msg_length", 24, 4 }, { "pulled_rdma_id", 28, 1 },
        { "pulled_rdma_seqnum", 29, 1 }, { "pulled_rdma_offset", 30, 2 } }),
    [PULL_REPLY] = layout(16, { { "frame_seqnum", 1, 1 }, { "frame_length", 2, 2 }, { "msg_offset", 4, 4 },
        { "pull_handle", 8, 4 }, { "magic", 12, 4 } }),
    [NOTIFY] = layout(24, ENDPOINTS, REGION, { { "pulled_rdma_id", 12, 1 }, { "pulled_rdma_seqnum", 13, 1 },
        { "lib_seqnum", 18, 2 }, { "lib_piggyack", 20, 2 } }),
    [NACK_LIB] = layout(16, { { "src_endpoint", 1, 1 }, { "nack_type", 3, 1 }, { "dst_endpoint", 9, 1 }, { "lib_seqnum", 12, 2 } }),
    [NACK_MCP] = layout(16, { { "src_endpoint", 1, 1 }, { "nack_type", 3, 1 }, { "pull_handle", 8, 4 }, { "magic", 12, 4 } }),
}
local BY_DIALECT = {
    [MX] = {
        [MEDIUM] = layout(32, ENDPOINTS, { { "length", 4, 2 } }, MESSAGE, FRAGMENT, { { "frag_pipeline", 27, 1 } }),
        [PULL] = layout(32, ENDPOINTS, REGION, { { "pulled_rdma_id", 12, 1 }, { "pulled_rdma_seqnum", 13, 1 },
            { "pulled_rdma_offset", 14, 2 }, { "pull_handle", 16, 4 }, { "magic", 20, 4 }, { "first_frame_offset", 24, 2 },
            { "block_length", 26, 2 }, { "frame_index", 28, 4 } }),
    },
    [OPEN_MX] = {
        [MEDIUM] = layout(32, ENDPOINTS, { { "length", 4, 4 } }, MESSAGE, FRAGMENT),
        [PULL] = layout(44, ENDPOINTS, REGION, { { "pulled_rdma_id", 12, 4 }, { "pulled_rdma_seqnum", 16, 1 },
            { "pulled_rdma_offset", 20, 4 }, { "pull_handle", 24, 4 }, { "magic", 28, 4 }, { "first_frame_offset", 32, 4 },
            { "block_length", 36, 4 }, { "frame_index", 40, 4 } }),
    },
}
-- Values that say that there is none.
local NOT_KNOWN = { dst_src_peer_index = UNKNOWN_PEER, src_dst_peer_index = UNKNOWN_PEER, session = UNSET_SESSION }
-- Fields that are shown with the two parts of a sequence number below them.
local NUMBERED = { lib_seqnum = true, lib_piggyack = true, send_seq = true, target_recv_seqnum_start = true }

-- A packet: `tvb` from the peer index on, `tree` of ours, `have` bytes of the body on the wire, `kept` of them in the capture,
-- `v` its fields' values by name.

local function hex(number) return string.format("0x%08x", number) end

local function size(bytes)
    if bytes > 0 and bytes % 1048576 == 0 then return string.format("%d MiB", math.floor(bytes / 1048576)) end
    if bytes > 0 and bytes % 1024 == 0 then return string.format("%d KiB", math.floor(bytes / 1024)) end
    return string.format("%d B", math.floor(bytes))
end

-- Sequence numbers as people count: without the session number where that is 0.
local function seq(bits)
    local number, session = bits % 16384, math.floor(bits / 16384)
    return session == 0 and string.format("%d", number) or string.format("%d:%d", session, number)
end

-- The receiver's number for the sending board, or the other way round.
local function peer(index) return index == UNKNOWN_PEER and "?" or string.format("%d", index) end

local function match(v) return "match 0x" .. (v.match_info:tohex():gsub("^0+(.)", "%1")) end

-- Who sends to whom: the receiver's number for the sending board, its endpoint, and the endpoint that it is for.
local function route(p)
    return string.format("%s:%d→%d", peer(p.v.dst_src_peer_index), p.v.src_endpoint, p.v.dst_endpoint)
end

local function rdma(v) return string.format("rdma %d/%d", v.pulled_rdma_id, v.pulled_rdma_seqnum) end

local function add_fields(p, list)
    for _, entry in ipairs(list) do
        local name, at, bytes = entry[1], entry[2], entry[3]
        if at + bytes <= p.kept then
            local range = p.tvb(BODY + at, bytes)
            local item = p.tree:add(f[name], range)
            if bytes <= 4 then p.v[name] = range:uint() else p.v[name] = range:uint64() end
            if p.v[name] == NOT_KNOWN[name] then item:append_text(" (not known)") end
            if NUMBERED[name] then
                item:add(f[name .. ".sesnum"], range)
                item:add(f[name .. ".number"], range)
            end
        end
    end
end

-- Bytes of the body from `at` on, as far as the capture has them. None is not shown.
local function add_bytes(p, name, at, bytes)
    local shown = math.min(bytes, p.kept - at)
    if shown > 0 then return p.tree:add(f[name], p.tvb(BODY + at, shown)) end
end

local function generated(p, name, value)
    return p.tree:add(f[name], value):set_generated()
end

local function note(p, which, text)
    p.tree:add_proto_expert_info(expert_of[which], text)
end

-- Whether the declared bytes follow offset `at` of the body; else the reason and a text.
local function missing(p, at, declared)
    if at + declared > p.have then
        return "data_missing", string.format("%d bytes are declared and %d are there", declared, p.have - at)
    end
end

local function too_long(declared, most)
    if declared > most then return "too_long", string.format("%d bytes, of which there are at most %d", declared, most) end
end

local function too_short(declared, least)
    if declared < least then return "too_short", string.format("%d bytes, of which there are at least %d", declared, least) end
end

-- The first that has a reason: pairs of functions' results, tried in order.
local function first(p, ...)
    for _, check in ipairs({ ... }) do
        local reason, text = check(p)
        if reason then return reason, text end
    end
end

-- Data behind a header of `at` bytes, and what is left.
local function show_data(p, at, bytes)
    p.ends = at + bytes
    add_bytes(p, "data", at, bytes)
end

local function sizes()
    if mxoe.prefs.dialect == MX then return MX_FRAGMENT_BYTES, MX_REPLY_BYTES, MX_BLOCK_FRAMES end
    local frame = math.max(mxoe.prefs.frame_bytes_max, 176)
    local fragment = frame - 48
    if fragment > 4096 then fragment = fragment >= 8192 and 8192 or 4096 end
    return fragment, frame - 32, mxoe.prefs.block_frames
end

-- Requests that wait for answers, from the first pass over a capture: by who asked whom for what.
local asked, answered, links = {}, {}, {}

function mxoe.init()
    asked, answered, links = {}, {}, {}
end

local function remember(p, key)
    if not p.pinfo.visited then asked[key] = { frame = p.pinfo.number, time = p.pinfo.rel_ts } end
    if answered[p.pinfo.number] then generated(p, "response_in", answered[p.pinfo.number]) end
end

-- Links an answer with `request`, found on the first pass and kept for later ones.
local function link(p, request, name)
    local here = p.pinfo.number
    if not p.pinfo.visited and request then
        links[here] = request
        if name == "request_in" and not answered[request.frame] then answered[request.frame] = here end
    end
    local found = links[here]
    if not found then return end
    generated(p, name, found.frame)
    if name == "request_in" then
        local passed = math.max(p.pinfo.rel_ts - found.time, 0)
        local seconds = math.floor(passed)
        generated(p, "response_time", NSTime(seconds, math.min(math.floor((passed - seconds) * 1e9 + 0.5), 999999999)))
    end
end

local function key(...) return table.concat({ ... }, "|") end
local function source(p) return tostring(p.pinfo.dl_src) end
local function target(p) return tostring(p.pinfo.dl_dst) end

-- One transfer has several PULLs of one handle. At most four blocks of at most 64 frames are under way, so of the last four blocks
-- the one of a reply is that which begins least before its frame, modulo 256. Of one that is asked for again the last PULL counts.
local function remember_pull(p, v)
    local name = key("pull", source(p), target(p), v.pull_handle, v.magic)
    if not p.pinfo.visited then
        local pulls = asked[name] or {}
        asked[name] = pulls
        for at, pull in ipairs(pulls) do
            if pull.index == v.frame_index then
                table.remove(pulls, at)
                break
            end
        end
        table.insert(pulls, 1, { frame = p.pinfo.number, time = p.pinfo.rel_ts, index = v.frame_index })
        pulls[5] = nil
    end
    if answered[p.pinfo.number] then generated(p, "response_in", answered[p.pinfo.number]) end
end

local function pull_of(p, v, distance)
    local best, best_distance
    for _, pull in ipairs(asked[key("pull", target(p), source(p), v.pull_handle, v.magic)] or {}) do
        local far = distance(pull)
        if not best or far < best_distance then best, best_distance = pull, far end
    end
    return best
end

-- What a RNDV announces, from either side: `mine` is true at the message's sender.
local function region_key(p, v, mine)
    local from, to = source(p), target(p)
    if mine then return key("rndv", from, v.src_endpoint, to, v.dst_endpoint, v.pulled_rdma_id, v.pulled_rdma_seqnum) end
    return key("rndv", to, v.dst_endpoint, from, v.src_endpoint, v.pulled_rdma_id, v.pulled_rdma_seqnum)
end

local function note_session(p)
    if p.v.session == UNSET_SESSION then note(p, "session", "The sender has not learned the session: its peer refuses this or drops it") end
end

-- For each type: what a board refuses it for (nil where nothing), and what is shown of one that it takes. `info` is for the column.
local CHECKS, SHOWN = {}, {}

CHECKS[RAW] = function(p) return too_long(p.have - 1, RAW_FRAME_BYTES_MAX - HEADER_BYTES - 1) end
SHOWN[RAW] = function(p)
    p.ends = p.have
    local zeros = p.kept >= 28 and p.tvb(BODY + 1, 17):bytes():tohex() == string.rep("0", 34)
    if not zeros then
        add_bytes(p, "data", 1, p.have - 1)
        return size(p.have - 1)
    end
    local nic, serial = p.tvb(BODY + 18, 6), p.tvb(BODY + 24, 4)
    p.tree:add(f.announced_nic, nic)
    p.tree:add(f.announced_serial, serial)
    p.ends = 28
    return string.format("announcement of %s, serial %s", tostring(nic:ether()), hex(serial:uint()))
end

SHOWN[HOST_QUERY] = function(p)
    remember(p, key("host", source(p), target(p), p.v.host_magic))
    return "as peer " .. peer(p.v.src_dst_peer_index)
end

CHECKS[HOST_REPLY] = function(p)
    local length = p.v.length
    return first(p, function() return too_short(length, 1) end, function() return too_long(length, NAME_BYTES_MAX) end,
        function() return missing(p, 16, length) end)
end
SHOWN[HOST_REPLY] = function(p)
    local v = p.v
    p.ends = 16 + v.length
    link(p, asked[key("host", target(p), source(p), v.host_magic)], "request_in")
    if p.ends > p.kept then return "cut" end
    -- The last byte counts as NUL, whatever it is.
    local bytes = v.length > 1 and p.tvb(BODY + 16, v.length - 1):raw() or ""
    local name = bytes:match("^[^\0]*"):gsub("[^\32-\126]", function(byte) return string.format("\\x%02x", byte:byte()) end)
    p.tree:add(f.hostname, p.tvb(BODY + 16, v.length), name)
    return string.format("\"%s\", as peer %s", name, peer(v.src_dst_peer_index))
end

CHECKS[TRUC] = function(p)
    local v = p.v
    local reason, text = first(p, function() return too_short(v.length, 16) end, function() return missing(p, 12, v.length) end)
    if reason then return reason, text end
    if v.truc_type ~= 0x55 then return "truc_type", string.format("of kind 0x%02x", v.truc_type) end
    if v.session ~= v.ack_session_id then return "truc_sessions", "its two sessions differ" end
end
SHOWN[TRUC] = function(p)
    note_session(p)
    return string.format("%s ack %s, acknum %d", route(p), seq(p.v.lib_seqnum), p.v.acknum)
end

CHECKS[CONNECT] = function(p)
    local v = p.v
    local reason, text = first(p, function() return too_short(v.length, 16) end, function() return missing(p, 16, v.length) end)
    if reason then return reason, text end
    if v.is_reply > 1 then return "connect_kind", string.format("is_reply is %d", v.is_reply) end
    if v.is_reply == 1 and not STATUSES[v.status] then return "connect_status", string.format("status %d", v.status) end
end
SHOWN[CONNECT] = function(p)
    local v = p.v
    if v.is_reply == 0 then
        remember(p, key("connect", source(p), v.src_endpoint, target(p), v.dst_endpoint, v.src_session_id, v.connect_seqnum))
        return string.format("%s session %s, key 0x%x, expects %s", route(p), hex(v.src_session_id), v.app_key,
            seq(v.target_recv_seqnum_start))
    end
    local name = key("connect", target(p), v.dst_endpoint, source(p), v.src_endpoint, v.src_session_id, v.connect_seqnum)
    link(p, asked[name], "request_in")
    if v.status ~= 0 then note(p, "refused", "Refused: " .. STATUSES[v.status]) end
    return string.format("reply %s %s, session %s, expects %s", route(p), STATUSES[v.status], hex(v.target_session_id),
        seq(v.target_recv_seqnum_start))
end

for kind, most in pairs({ [TINY] = 32, [SMALL] = 128 }) do
    CHECKS[kind] = function(p)
        return first(p, function() return too_long(p.v.length, most) end, function() return missing(p, 24, p.v.length) end)
    end
    SHOWN[kind] = function(p)
        show_data(p, 24, p.v.length)
        return string.format("%s seq %s, %s, %s", route(p), seq(p.v.lib_seqnum), size(p.v.length), match(p.v))
    end
end

-- Where a fragment begins as far as the packet itself says it; no message is so long that a shift by 32 is within it.
local function frag_offset(v)
    if not v.frag_pipeline then return 0 end
    return v.frag_seqnum * 2 ^ math.min(v.frag_pipeline, 32)
end
CHECKS[MEDIUM] = function(p)
    local v = p.v
    local most = mxoe.prefs.dialect == MX and MX_FRAGMENT_BYTES or 0xffff
    local reason, text = first(p, function() return too_long(v.frag_length, most) end, function() return missing(p, 32, v.frag_length) end)
    if reason then return reason, text end
    local offset = frag_offset(v)
    if offset + v.frag_length > v.length then
        return "fragment_outside", string.format("%d bytes at %.0f of a message of %d", v.frag_length, offset, v.length)
    end
end
SHOWN[MEDIUM] = function(p)
    local v = p.v
    local offset = v.frag_pipeline and frag_offset(v) or v.frag_seqnum * (sizes())
    generated(p, "frag_offset", UInt64(offset))
    show_data(p, 32, v.frag_length)
    return string.format("%s seq %s, fragment %d: %s of %s, %s", route(p), seq(v.lib_seqnum), v.frag_seqnum, size(v.frag_length),
        size(v.length), match(v))
end

CHECKS[RNDV] = function(p)
    return first(p, function() return too_short(p.v.length, 8) end, function() return missing(p, 24, p.v.length) end)
end
SHOWN[RNDV] = function(p)
    local v = p.v
    remember(p, region_key(p, v, true))
    return string.format("%s seq %s, %s, %s, %s", route(p), seq(v.lib_seqnum), size(v.msg_length), rdma(v), match(v))
end

SHOWN[PULL] = function(p)
    local v = p.v
    local _, reply_bytes, frames_max = sizes()
    local frames = math.ceil((v.first_frame_offset + v.block_length) / reply_bytes)
    generated(p, "frames", frames)
    if frames > frames_max then
        note(p, "block", string.format("%d frames of %d bytes are asked for, of which there are at most %d: dropped", frames, reply_bytes,
            frames_max))
    end
    note_session(p)
    remember_pull(p, v)
    link(p, asked[region_key(p, v, false)], "rndv_in")
    return string.format("%s %s, %d frames from %d, %s of %s, handle %s", route(p), rdma(v), frames, v.frame_index, size(v.block_length),
        size(v.total_length), hex(v.pull_handle))
end

CHECKS[PULL_REPLY] = function(p) return missing(p, 16, p.v.frame_length) end
SHOWN[PULL_REPLY] = function(p)
    local v = p.v
    -- In Open-MX mode the frames' size is a matter of the network's: only MX mode is sure of it.
    if mxoe.prefs.dialect == MX and math.ceil(v.msg_offset / MX_REPLY_BYTES) % 256 ~= v.frame_seqnum then
        note(p, "frame", string.format("Byte %d does not stand in a frame with number %d: dropped", v.msg_offset, v.frame_seqnum))
    end
    link(p, pull_of(p, v, function(pull) return (v.frame_seqnum - pull.index) % 256 end), "request_in")
    show_data(p, 16, v.frame_length)
    return string.format("frame %d, %s at %d, handle %s", v.frame_seqnum, size(v.frame_length), v.msg_offset, hex(v.pull_handle))
end

SHOWN[NOTIFY] = function(p)
    local v = p.v
    note_session(p)
    link(p, asked[region_key(p, v, false)], "rndv_in")
    return string.format("%s seq %s, %s, %s", route(p), seq(v.lib_seqnum), size(v.total_length), rdma(v))
end

local function check_nack(p)
    local nack = p.v.nack_type
    if nack == 0 or not NACKS[nack] then return "nack_type", string.format("of type %d", nack) end
end
CHECKS[NACK_LIB], CHECKS[NACK_MCP] = check_nack, check_nack
SHOWN[NACK_LIB] = function(p)
    note(p, "refused", "Refused: " .. NACKS[p.v.nack_type])
    return string.format("%s seq %s: %s", route(p), seq(p.v.lib_seqnum), NACKS[p.v.nack_type])
end
SHOWN[NACK_MCP] = function(p)
    note(p, "refused", "Refused: " .. NACKS[p.v.nack_type])
    link(p, pull_of(p, p.v, function() return 0 end), "request_in")
    return string.format("%s, handle %s", NACKS[p.v.nack_type], hex(p.v.pull_handle))
end

-- Reads the packet as far as it goes. Gives the column's text; or the reason and text of its refusal.
local function dissect(p)
    local short = "the frame has %d bytes, its header %d"
    if p.have < 1 then return nil, "short", string.format(short, p.frame, HEADER_BYTES + 1) end
    if p.kept < 1 then return "cut" end
    local kind = p.tvb(BODY, 1):uint()
    p.kind = TYPES[kind] or string.format("type %d", kind)
    p.tree:add(f.type, p.tvb(BODY, 1))
    if NOT_SPOKEN[kind] then return nil, "unsupported_type", p.kind .. " is not spoken between hosts" end
    local list = LAYOUTS[kind] or BY_DIALECT[mxoe.prefs.dialect][kind]
    if not list then return nil, "type", string.format("packet type %d does not exist", kind) end
    if kind == CONNECT and p.kept >= 32 and p.tvb(BODY + 26, 1):uint() == 1 then list = CONNECT_REPLY end
    add_fields(p, list)
    if p.have < list.head then return nil, "short", string.format(short, p.frame, HEADER_BYTES + list.head) end
    if p.kept < list.head then return "cut" end
    p.ends = list.head
    local reason, text
    if CHECKS[kind] then reason, text = CHECKS[kind](p) end
    if reason then return nil, reason, text end
    return SHOWN[kind](p)
end

function mxoe.dissector(tvb, pinfo, tree)
    pinfo.cols.protocol = "MXoE"
    local sub = tree:add(mxoe, tvb())
    local p = { tvb = tvb, pinfo = pinfo, tree = sub, v = {}, frame = tvb:reported_len() + ETHERNET_BYTES,
        have = tvb:reported_len() - BODY, kept = tvb:len() - BODY }
    local info, reason, text
    if p.have < 0 then
        reason, text = "short", string.format("the frame has %d bytes, its header %d", p.frame, HEADER_BYTES)
    elseif p.kept < 0 then
        info = "cut"
    else
        add_fields(p, HEADER)
        info, reason, text = dissect(p)
    end
    if p.have > p.kept then generated(p, "cut", true) end
    if reason then
        generated(p, "malformed", reason)
        note(p, "malformed", "Dropped without an answer: " .. text)
        info = string.format("[%s: %s]", reason, text)
    elseif p.ends and p.ends < p.have then
        add_bytes(p, "padding", p.ends, p.have - p.ends)
    end
    local line = p.kind and (p.kind .. " " .. info) or info
    pinfo.cols.info = line
    sub:append_text(", " .. line)
    return tvb:len()
end

local registered = ETHERTYPE
DissectorTable.get("ethertype"):add(ETHERTYPE, mxoe)

function mxoe.prefs_changed()
    local wanted = mxoe.prefs.ethertype
    if wanted == registered then return end
    local ethertypes = DissectorTable.get("ethertype")
    if registered ~= ETHERTYPE then ethertypes:remove(registered, mxoe) end
    if wanted ~= ETHERTYPE and wanted >= 1536 and wanted <= 0xffff then ethertypes:add(wanted, mxoe) end
    registered = wanted
end

-- A datagram is one frame, from its Ethernet header on.
local ethernet = Dissector.get("eth_withoutfcs")

function carrier.dissector(tvb, pinfo, tree)
    pinfo.cols.protocol = "MXoE/UDP"
    local sub = tree:add(carrier, tvb())
    if tvb:len() < ETHERNET_BYTES then
        pinfo.cols.info = "no frame"
        sub:add_proto_expert_info(carrier_short, string.format("%d bytes are no frame", tvb:len()))
        return tvb:len()
    end
    -- What other dissectors find wrong with a frame of theirs they say themselves.
    pcall(ethernet.call, ethernet, tvb, pinfo, tree)
    return tvb:len()
end

DissectorTable.get("udp.port"):add(UDP_PORT, carrier)
