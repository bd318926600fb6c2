//! The table of reasons: code, enum variant, identifier, kind, summary, remedy.

use super::ReasonKind;

reasons! {
    /// Reaching a daemon
    1 DaemonUnreachable, "daemon-unreachable", Refusal:
    "no daemon answers, and this program starts none";
    "Start `isthmusd`, mount the folder of its socket into the container, or set `ISTHMUS_SOCKET`. MX and libfabric programs start a daemon of their user themselves, unless `ISTHMUS_SOCKET` or `ISTHMUS_AUTOSTART=0` is set.";

    2 DaemonNotStarted, "daemon-not-started", Refusal:
    "no daemon answers, and starting one for this user failed";
    "Run `isthmusd --user` by hand and read its log; `isthmusd` has to be in `PATH` or beside the library.";

    3 SocketDenied, "socket-denied", Refusal:
    "the daemon serves another user alone, or the kernel or a security module denies the connection to its socket";
    "Set `policy.attach` of a daemon that is to serve several users, and restart it. Otherwise check the mode and owner of the socket and its folder, and the log of SELinux or AppArmor for a denial of `connectto`.";

    4 SocketUntrusted, "socket-untrusted", Refusal:
    "the directory of the daemon's socket belongs to another user, or other users can write to it";
    "Take the permission to write to it from other users, or choose a directory that only you, or root alone, can write to: set `daemon.socket`, and `ISTHMUS_SOCKET` for programs.";

    5 DaemonConnectionLost, "daemon-connection-lost", Ended:
    "the connection to the daemon broke; the library is reconnecting";
    "None needed: channels stay open, and the domain resumes when a daemon answers. The daemon's log shows why it exited.";

    6 DaemonShutdown, "daemon-shutdown", Ended:
    "the daemon was told to stop";
    "Start it again: running domains resume.";

    7 DaemonIdle, "daemon-idle", Ended:
    "the daemon exited because no domain had been attached for `daemon.idle_exit_s` seconds";
    "None needed: the library starts another one when it attaches.";

    8 DaemonSocketInUse, "daemon-socket-in-use", Refusal:
    "another daemon is already serving this socket";
    "Stop the other one first, or give this one another socket with `daemon.socket`.";

    /// Versions and the control socket
    20 VersionTooOld, "version-too-old", Refusal:
    "the library is more than one minor version older than the daemon";
    "Update the library (in a container: its image) to at most one minor version behind the daemon.";

    21 VersionTooNew, "version-too-new", Refusal:
    "the library is more than one minor version newer than the daemon";
    "Update the daemon to at most one minor version behind the library.";

    22 VersionOtherMajor, "version-other-major", Refusal:
    "library and daemon have different major versions";
    "Use a library and a daemon of the same major version.";

    23 NotIsthmus, "not-isthmus", Refusal:
    "the connected program does not speak the control protocol";
    "Only Isthmus libraries and tools connect to this socket; see docs/spec/control.md.";

    24 HandshakeTimeout, "handshake-timeout", Refusal:
    "no message arrived on the connection within the handshake timeout";
    "Libraries send `Hello` immediately: look for a stopped process, or for a tool that only keeps the connection open.";

    25 MalformedControl, "malformed-control", Fault:
    "a control message was not well formed";
    "Use the library as it is; if it is unchanged, report it with the text of the log line.";

    26 UnexpectedMessageType, "unexpected-message-type", Refusal:
    "the message is not allowed in this state of the connection";
    "Send `Hello` first and once, `Attach` once, and all other requests after attaching.";

    27 TooManyRequests, "too-many-requests", Fallback:
    "the connection exceeded its request rate and is read more slowly";
    "Cache the answers instead of asking again; if the program is correct, report a bug.";

    28 ControlQueueFull, "control-queue-full", Ended:
    "the domain did not read its control socket and its queue reached the limit";
    "Let the program call the library, or let the library's descriptor wake it; a stopped process attaches again when it continues.";

    29 ConnectionsFull, "connections-full", Refusal:
    "the limit of connections, per user or in total, is reached";
    "Close connections that are not needed, or raise `limits.domains_max` and `limits.domains_per_user_max`.";

    30 UnsupportedRequest, "unsupported-request", Refusal:
    "the negotiated protocol version does not include this request";
    "Update whichever of the two is older: the request is of a newer minor version.";

    /// Policy
    40 AttachForbidden, "attach-forbidden", Refusal:
    "the policy does not let this user attach";
    "Add the user to `policy.attach`, or run a daemon for the user with `isthmusd --user`.";

    41 TalkForbidden, "talk-forbidden", Refusal:
    "the policy does not allow messages between these two domains";
    "Allow the pair in `policy.rules`, or set `policy.talk`.";

    42 ChannelsForbidden, "channels-forbidden", Fallback:
    "the policy keeps this pair on the daemon path";
    "Set `policy.channels`, or `channel = true` in the rule that matches the pair.";

    43 GrantsForbidden, "grants-forbidden", Fallback:
    "the policy does not let regions be granted";
    "Set `policy.grants`.";

    44 DifferentOwner, "different-owner", Fallback:
    "the two domains belong to different users, and regions do not stay mapped between users";
    "Run both as one user, if each may see what the other one sends later from the same buffer.";

    45 CaptureForbidden, "capture-forbidden", Refusal:
    "captures show frames of all users; only root and the daemon's user may capture";
    "Run `isthmus capture` as root, or as the user that `isthmusd` runs as.";

    46 NameForbidden, "name-forbidden", Refusal:
    "the policy binds this name to another user, group, cgroup or guest";
    "Attach under another name (`ISTHMUS_DOMAIN`), or add an entry for the program to `policy.names`.";

    47 NotYours, "not-yours", Refusal:
    "the object of the request belongs to another user, to another guest or to the host";
    "Run the command as root, or as the user that `isthmusd` runs as, on the host of the daemon.";

    48 DifferentContainer, "different-container", Fallback:
    "the two programs are not known to be in one container, and regions do not stay mapped between containers";
    "None needed: messages are copied. If the containers of a user may see each other's memory, or before Linux 6.5, set `policy.grants = \"same-user\"`.";

    /// Names and numbers
    60 NameTaken, "name-taken", Refusal:
    "another domain has this name";
    "Attach under another name, or without one.";

    61 NameInvalid, "name-invalid", Refusal:
    "the name is not a valid domain name: `d` and digits is reserved for domain numbers";
    "Attach under another name.";

    62 DomainsFull, "domains-full", Refusal:
    "the limit of domains is reached";
    "Raise `limits.domains_max`.";

    63 UserDomainsFull, "user-domains-full", Refusal:
    "the user has its maximum of domains, or half of what other users leave";
    "End programs that are not needed, or raise `limits.domains_per_user_max` and `limits.domains_max`.";

    64 EndpointsFull, "endpoints-full", Refusal:
    "the limit of endpoints of one domain is reached";
    "Close endpoints that are not needed (`isthmus endpoint list` shows them), or raise `limits.endpoints_per_domain_max`.";

    65 EndpointTaken, "endpoint-taken", Refusal:
    "this endpoint is open already";
    "Request another endpoint, or any free one.";

    66 EndpointClosed, "endpoint-closed", Refusal:
    "the domain has no such endpoint open";
    "Open it before it is sent to; `isthmus endpoint list` shows what is open.";

    67 NoSuchDomain, "no-such-domain", Refusal:
    "no domain is attached under this name or number";
    "Check the name with `isthmus domain list`; both domains have to be attached to the same daemon.";

    68 NoSuchChannel, "no-such-channel", Refusal:
    "the domain has no such channel";
    "None needed if the channel was closed a moment ago; otherwise report it.";

    69 RequestInvalid, "request-invalid", Refusal:
    "the request has an invalid argument; see the text";
    "See the text: a number of arguments, or a value out of its range.";

    70 TicketInvalid, "ticket-invalid", Refusal:
    "the ticket of an earlier attachment is not valid";
    "None needed: the library attaches anew. It happens when the daemon's key was removed, or another user shows the ticket.";

    71 StillAttached, "still-attached", Refusal:
    "the domain that wants to be resumed is attached already";
    "Only one process can be a domain: after a fork, the child attaches anew.";

    /// Coming and going
    80 PeerDetached, "peer-detached", Ended:
    "the peer detached";
    "None needed.";

    81 PeerConnectionLost, "peer-connection-lost", Ended:
    "the peer's connection broke: it was killed, crashed, or exited without detaching";
    "Check how its process ended; the kernel's log shows whether the OOM killer ended it.";

    82 PeerFault, "peer-fault", Ended:
    "the peer violated the protocol, and the channel with it was closed";
    "See the counted fault in `isthmus channel list` and the daemon's log.";

    83 ClosedByPeer, "closed-by-peer", Ended:
    "the peer closed the channel";
    "None needed.";

    84 ChannelReplaced, "channel-replaced", Ended:
    "a newer channel between the same domains replaced this one";
    "None needed.";

    85 ClosedLocally, "closed-locally", Ended:
    "this domain closed the channel";
    "None needed.";

    86 MessagesUndelivered, "messages-undelivered", Ended:
    "a program closed its endpoint or exited before the receiver had taken messages that were over for the sender";
    "Have the receiver call its library more often, or raise `ISTHMUS_LINGER_S` of the sender.";

    /// Making channels
    100 ChannelNotRequested, "channel-not-requested", Fallback:
    "no channel was requested yet: the first message requests one";
    "None needed.";

    101 ChannelPending, "channel-pending", Fallback:
    "the channel is being set up";
    "None needed: it takes well below a millisecond if the listener is running.";

    102 ChannelRefused, "channel-refused", Fallback:
    "the peer refused the channel";
    "Check whether channels are disabled in its library (`ISTHMUS_CHANNELS=0`).";

    103 ChannelTimeout, "channel-timeout", Fallback:
    "the peer did not answer the offer in time";
    "Let its program call the library now and then; see whether its process is stopped.";

    104 SameDomain, "same-domain", Fallback:
    "both endpoints belong to one domain, and its messages stay in the library";
    "None needed: nothing is faster.";

    105 ReadyMapFull, "ready-map-full", Fallback:
    "the receiver's ready map has no bit left for another channel of this owner";
    "Use fewer domains that communicate all-to-all: a ready map has 4096 bits.";

    106 ReadyMapsFull, "ready-maps-full", Fallback:
    "the receiver has the maximum number of ready maps, one per owner of its peers";
    "Run fewer different users against one domain.";

    107 DaemonOutOfFds, "daemon-out-of-fds", Fallback:
    "the daemon has no file descriptors left";
    "Raise `LimitNOFILE=` of the daemon's unit, or `ulimit -n` of the shell that started it.";

    108 OutOfFds, "out-of-fds", Fallback:
    "the process has no file descriptor left";
    "Raise `ulimit -n` (RLIMIT_NOFILE) of the program.";

    109 OutOfMemory, "out-of-memory", Fallback:
    "the memory could not be allocated";
    "Raise the memory limit of the control group that the text names, or use fewer channels.";

    110 OutOfAddressSpace, "out-of-address-space", Fallback:
    "the process may not map more memory: the limit of its address space (RLIMIT_AS) or of its mappings (vm.max_map_count) is reached";
    "Raise `ulimit -v` (RLIMIT_AS) of the program, or `vm.max_map_count`.";

    111 FdsInFlight, "fds-in-flight", Fallback:
    "too many file descriptors are in flight in sockets of this user";
    "Raise `ulimit -n`: the kernel allows as many in flight as a process may have open.";

    112 ChannelsFull, "channels-full", Fallback:
    "one of the two domains has reached its limit of channels";
    "Raise `limits.channels_per_domain_max`, or use fewer peers.";

    113 KernelRefused, "kernel-refused", Fallback:
    "the kernel refused an operation of the daemon; see the text";
    "See the text: seccomp, a security module or a limit of the system may forbid it.";

    114 ChannelsDisabled, "channels-disabled", Fallback:
    "channels are disabled in this domain";
    "Unset `ISTHMUS_CHANNELS=0`.";

    115 NoSharedMemory, "no-shared-memory", Fallback:
    "the two domains share no memory: they are on different machines, or one of them is in a guest";
    "None needed: the daemon of the host copies between them.";

    /// Messages and what peers write into shared memory
    130 MessageTooLong, "message-too-long", Refusal:
    "the message exceeds the maximum length";
    "Split the message.";

    131 MalformedRecord, "malformed-record", Fault:
    "a record in the ring was not well formed";
    "Look for a program that overwrites its memory; otherwise the other domain is hostile.";

    132 CellStampInvalid, "cell-stamp-invalid", Fault:
    "a ring cell has an impossible stamp";
    "Look for a program that overwrites its memory; otherwise the other domain is hostile.";

    133 RingHeadInvalid, "ring-head-invalid", Fault:
    "the ring's consumer index is beyond the producer index";
    "Look for a program that overwrites its memory; otherwise the other domain is hostile.";

    134 SlabHeadInvalid, "slab-head-invalid", Fault:
    "the slab's consumer index is beyond the producer index";
    "Look for a program that overwrites its memory; otherwise the other domain is hostile.";

    135 FragmentOutsideSlab, "fragment-outside-slab", Fault:
    "a record refers to bytes outside the slab";
    "Look for a program that overwrites its memory; otherwise the other domain is hostile.";

    136 RecordUnexpected, "record-unexpected", Fault:
    "a well-formed record is not allowed here: unknown message, wrong epoch or unknown peer";
    "Report it with the text of the log line, if both libraries are unchanged.";

    137 CreditExceeded, "credit-exceeded", Fault:
    "a domain sent more on the daemon path than its credit allows";
    "Report it, if its library is unchanged.";

    138 RingNotRead, "ring-not-read", Ended:
    "the domain did not read its ring, and the records that the daemon queued for it reached the limit";
    "Let the program call the library, or let the library's descriptor wake it; a stopped process attaches again when it continues.";

    /// Regions and grants
    150 RegionNotSealed, "region-not-sealed", Fault:
    "the region offered is not sealed: it could shrink under its reader";
    "Use the library as it is: it seals its regions.";

    151 RegionTooSmall, "region-too-small", Fault:
    "the offered region is smaller than declared";
    "Use the library as it is; if it is unchanged, report it.";

    152 RegionNotGranted, "region-not-granted", Fallback:
    "the message names a region that was not granted to the receiver";
    "None needed: the message goes through the slab.";

    153 RegionsFull, "regions-full", Fallback:
    "the receiver has mapped the maximum number of this peer's regions";
    "None needed: the oldest are unmapped. Use fewer large buffers to avoid remapping.";

    154 DoorbellInvalid, "doorbell-invalid", Fault:
    "the offered doorbell is not an eventfd";
    "Use the library as it is; if it is unchanged, report it.";

    /// Buffers of large messages
    170 BufferCacheDisabled, "buffer-cache-disabled", Fallback:
    "the registration cache is disabled";
    "Unset `ISTHMUS_RCACHE` or `MX_RCACHE`.";

    171 BufferTooSmall, "buffer-too-small", Fallback:
    "the buffer is small or holds no whole page";
    "None needed.";

    172 BufferNew, "buffer-new", Fallback:
    "the buffer was not used often enough yet to be migrated to shared memory";
    "Use buffers again instead of allocating new ones.";

    173 BufferReplaced, "buffer-replaced", Fallback:
    "the buffer was in shared memory, but its addresses are now mapped to other memory";
    "None needed; buffers that live longer are faster.";

    174 BufferNotAnonymous, "buffer-not-anonymous", Fallback:
    "the buffer is memory of a file, of huge pages, or of the stack";
    "Send from memory of malloc or of an anonymous private mapping.";

    175 BufferNotWritable, "buffer-not-writable", Fallback:
    "a part of the buffer may not be written or not be read";
    "Send from ordinary memory.";

    176 BufferShared, "buffer-shared", Fallback:
    "the buffer is shared memory already";
    "Send from private memory.";

    177 BufferUnmapped, "buffer-unmapped", Fallback:
    "a part of the buffer is not mapped";
    "Keep buffers until their messages are complete.";

    178 BufferHasMemoryAdvice, "buffer-has-memory-advice", Fallback:
    "the program has set madvise, mlock2 or userfaultfd options on this memory";
    "Send from memory without such options.";

    179 BufferPinned, "buffer-pinned", Fallback:
    "the process has locked pages, or pages pinned for a device";
    "Lock memory after its first messages, or not at all.";

    180 BufferInUse, "buffer-in-use", Fallback:
    "the buffer overlaps another one that is being sent";
    "Wait for the other message to complete.";

    181 BufferCacheFull, "buffer-cache-full", Fallback:
    "the registration cache is full";
    "Use fewer large buffers, or smaller ones.";

    182 BufferNoProcmapQuery, "buffer-no-procmap-query", Fallback:
    "the kernel does not support PROCMAP_QUERY";
    "Run Linux 6.11 or later (PROCMAP_QUERY).";

    183 BufferNoProc, "buffer-no-proc", Fallback:
    "/proc/self/maps is not available";
    "Mount /proc in the container.";

    184 BufferOutOfFds, "buffer-out-of-fds", Fallback:
    "the process has no file descriptor left for shared memory";
    "Raise `ulimit -n` (RLIMIT_NOFILE) of the program.";

    185 BufferOutOfMemory, "buffer-out-of-memory", Fallback:
    "the memory or the number of mappings of the process is at its limit";
    "Raise the memory limit of the control group, `ulimit -v`, or `vm.max_map_count`.";

    186 BufferFileSize, "buffer-file-size", Fallback:
    "files of the process may not be as large as the shared memory";
    "Raise `ulimit -f` (RLIMIT_FSIZE) of the program.";

    187 BufferForked, "buffer-forked", Fallback:
    "the process is a forked child; the registration cache belongs to its parent";
    "Attach in the child anew.";

    188 BufferDenied, "buffer-denied", Fallback:
    "the kernel refused to move the buffer into shared memory";
    "None needed before Linux 6.11 and in guests, where such memory stays with its program. Otherwise see the log of the security module (SELinux, AppArmor, seccomp).";

    189 BufferLockLimit, "buffer-lock-limit", Fallback:
    "the limit of locked memory does not allow the buffer to be moved into shared memory";
    "Raise `ulimit -l` (RLIMIT_MEMLOCK), or do not lock all memory with mlockall.";

    /// Memory that is registered for others
    190 MemoryReadOnly, "memory-read-only", Fallback:
    "the memory is registered read-only; directly accessible memory is also writable by peers";
    "Register it for remote writes too, if all peers of the same user may write there.";

    191 MemoryHasCounter, "memory-has-counter", Fallback:
    "a counter is bound to remote accesses of this memory, so the owner must perform them";
    "Bind no counter for remote reads or writes to the endpoint or the region, if the count is not needed.";

    192 MemoryPageShared, "memory-page-shared", Fallback:
    "the bytes share a page with unregistered memory";
    "Register whole pages: start and length must be multiples of 4096.";

    193 MemoryForked, "memory-forked", Fallback:
    "the process has forked since the memory was registered";
    "Register it again after the fork, or start programs by `posix_spawn` or `system`, which are no forks.";

    194 MemoryThreads, "memory-threads", Fallback:
    "the process has other threads and may not use userfaultfd to stop them while memory is migrated";
    "Set `vm.unprivileged_userfaultfd` to 1, give the process CAP_SYS_PTRACE, or register before other threads are made.";

    195 MemoryNotReady, "memory-not-ready", Fallback:
    "the memory was not mapped yet, an earlier request was pending, or the operation is not atomic in hardware";
    "None needed: those that follow are done in the memory itself.";

    /// Buffers of large messages, in guests
    196 BufferCacheGuestDefault, "buffer-cache-guest-default", Fallback:
    "in a guest, the registration cache is off unless it is enabled explicitly";
    "Set `ISTHMUS_RCACHE=1` or `MX_RCACHE=1`, unless the program does with its buffers what a device's memory does not allow.";

    197 BufferUncached, "buffer-uncached", Fallback:
    "the guest's window is mapped uncached, so a buffer there would be slow";
    "Give the guest a window of 4 GiB (`window_mib = 4096`), or plug its device in while it runs.";

    /// The library itself
    200 LibraryPanicked, "library-panicked", Ended:
    "the library panicked, and the state of this domain is unknown";
    "Detach and attach anew; report it with the text of the last error.";

    /// MX
    210 MxBoardUnknown, "mx-board-unknown", Refusal:
    "there is no MX board with this number";
    "See the boards with `isthmus board list`, or declare another `[[mx.board]]` in the daemon's configuration.";

    211 MxNicUnknown, "mx-nic-unknown", Refusal:
    "no reachable MX board has this NIC ID";
    "List the reachable boards with `isthmus peer list`.";

    212 MxEndpointOutOfRange, "mx-endpoint-out-of-range", Refusal:
    "the endpoint number is beyond the MX board's limit";
    "Use a lower number, or raise `endpoints_max` of the board in the daemon's configuration.";

    213 MxEndpointTaken, "mx-endpoint-taken", Refusal:
    "the MX endpoint number is in use, or all numbers are";
    "See the owners with `isthmus endpoint list`; request any number, raise `endpoints_max`, or declare another `[[mx.board]]`.";

    214 MxEndpointClosed, "mx-endpoint-closed", Refusal:
    "no endpoint has this MX endpoint number";
    "Open the endpoint before it is connected to; `isthmus endpoint list` shows which are open.";

    215 MxBadKey, "mx-bad-key", Refusal:
    "the MX endpoint was opened with another key";
    "Give both programs the same key (the filter of `mx_open_endpoint` and `mx_connect`).";

    216 MxNumberMissing, "mx-number-missing", Refusal:
    "the endpoint has no MX endpoint number and had none recently";
    "Ask while the domain is attached: numbers are kept for the 4096 endpoints that closed last.";

    217 MxUserEndpointsFull, "mx-user-endpoints-full", Refusal:
    "the user has its maximum of MX endpoint numbers, or half of what other users leave";
    "Close endpoints that are not needed (`isthmus endpoint list` shows them), raise `limits.mx_endpoints_per_user_max`, or add boards.";

    /// Other hosts
    230 OtherHost, "other-host", Fallback:
    "the peer is on another host";
    "None: messages go by the daemons and the network between them.";

    /// MX on other hosts
    231 MxUnreachable, "mx-unreachable", Refusal:
    "the MX board is known but did not answer in time";
    "See with `isthmus peer list` when the board was last seen and over which link; see the frames with `isthmus capture`.";

    232 MxDisconnected, "mx-disconnected", Ended:
    "the MX endpoint on the other host was reopened or did not answer in time";
    "Connect again. `isthmus peer list` shows when its host was last seen.";

    233 MxTransferFailed, "mx-transfer-failed", Ended:
    "the transfer of a long message from another host failed";
    "Send it again; the log of the daemon there says more.";

    234 MxPartnersFull, "mx-partners-full", Refusal:
    "the MX endpoint has reached its limit of remote endpoints";
    "Close endpoints that are not needed and open them anew, or spread the work over more endpoints.";

    235 MxNoLinks, "mx-no-links", Refusal:
    "the MX board has no links to other hosts";
    "Configure `links` for the board and restart the daemon; `isthmus board list` shows the links of each board.";

    /// Guests
    240 HostDaemonUnreachable, "host-daemon-unreachable", Refusal:
    "this is a guest daemon, and the host daemon does not answer";
    "Start `isthmusd` on the host; name a guest of QEMU in its configuration, or let a guest of Xen in with `isthmus guest allow`. The log of the guest daemon says what is wrong.";

    241 GuestVectorsFull, "guest-vectors-full", Refusal:
    "the guest's device has no free interrupt vector";
    "Raise `vectors` of the guest in the host's configuration, or end domains that are not needed.";

    244 MonitorMissing, "monitor-missing", Fallback:
    "the two domains are in different guests, and the monitors of both are not configured";
    "Name the monitor of each guest (`monitor` of `[[kvm.guest]]`); the daemon then plugs a window into both that only these two share.";

    245 PairWindowPending, "pair-window-pending", Fallback:
    "the pair window is being plugged into both guests";
    "None needed: messages use the daemon path until the window is ready.";

    246 PairWindowRefused, "pair-window-refused", Fallback:
    "the pair window could not be plugged, or a guest did not map it in time";
    "The daemon's log has the details: the monitor's socket, a free slot that can be plugged into, the driver and the daemon in the guest.";

    247 PairWindowClosed, "pair-window-closed", Ended:
    "the pair window was closed";
    "Send again: messages use the daemon path until the next pair window is set up.";

    248 NotInGuestsYet, "not-in-guests-yet", Refusal:
    "the capability is not supported in guests yet";
    "Use it between programs of the host. In guests, the native API, MX, MPI, libfabric and verbs are supported; a guest joins an overlay network by a tap and a bridge of its host.";

    /// Streams between sockets
    300 StreamsDisabled, "streams-disabled", Refusal:
    "streams are disabled by the configuration of the daemon";
    "Set `sockets.enabled = true` and restart the daemon.";

    301 StreamNotTcp, "stream-not-tcp", Fallback:
    "the descriptor is not a TCP socket over IPv4 or IPv6";
    "None needed: other sockets are left to the kernel.";

    302 StreamWrongState, "stream-wrong-state", Fallback:
    "the TCP socket is not connected, or for a listener, is not listening";
    "None needed: the connection had ended before the daemon saw it.";

    303 StreamSocketTwice, "stream-socket-twice", Fallback:
    "the socket was shown before, by this program or by another one that shares it";
    "None needed: a socket that several processes use stays TCP.";

    304 StreamUnidentified, "stream-unidentified", Fallback:
    "the two sockets are in different network namespaces, and the kernel has no proof that they are one connection";
    "Start the server with `isthmus run --with sockets`, so that its listener keeps the SYN, and leave `net.ipv4.tcp_timestamps` at 1.";

    305 StreamOwnerDiffers, "stream-owner-differs", Fallback:
    "the programs at both ends belong to different users, and one of them has an older library, or the kernel records no connections";
    "Start both programs again with the library of this version, or run both as one user. `isthmus doctor` says whether the kernel records connections.";

    306 StreamAmbiguous, "stream-ambiguous", Fallback:
    "two sockets in other network namespaces could be the other end";
    "Give the network namespaces different addresses.";

    307 StreamPeerMissing, "stream-peer-missing", Fallback:
    "the socket at the other end was not shown within 60 seconds";
    "Start the other program with `isthmus run --with sockets` as well; none needed if it is on another host, if few bytes were sent, or if a proxy is between the two.";

    308 StreamDenied, "stream-denied", Fallback:
    "an address of the connection is in `sockets.deny`, or none is in `sockets.allow`";
    "Remove the entry from `sockets.deny` in the daemon's configuration, or add one to `sockets.allow`.";

    309 StreamsFull, "streams-full", Fallback:
    "the limit of streams, of shown or listening sockets, or of waiters is reached";
    "Raise `sockets.streams_max`, or close connections; `isthmus stream list` shows them.";

    310 StreamViolation, "stream-violation", Fault:
    "the program at the other end of a stream violated the protocol";
    "Update or remove the program at the other end: its library is broken or hostile.";

    311 StreamAcrossNamespaces, "stream-across-namespaces", Fallback:
    "the two sockets are in different network namespaces, and the kernel does not record connections for the daemon";
    "None needed: the connection stays TCP. For a stream, let the kernel record connections: `isthmus doctor` says what is missing. For the daemon of the system that is often `systemctl enable --now isthmus-helper.socket`.";

    312 StreamUnrecorded, "stream-unrecorded", Fallback:
    "the kernel has no record of the connection, so its other end is looked for in its network namespace only";
    "None needed: the connection stays TCP. Connect again, by a new socket: the connection is older than the program that records connections, its socket had connected before or was restored from a checkpoint, or it belongs to a cgroup that the daemon does not see, as one outside of its container.";

    313 StreamFastOpen, "stream-fast-open", Fallback:
    "the connection began with data in its SYN (TCP Fast Open), so its other end is looked for in its network namespace only";
    "None needed: the connection stays TCP. For a stream, connect without TCP Fast Open: `sysctl -w net.ipv4.tcp_fastopen=0`, or a setting of the program.";

    /// Verbs
    350 VerbsDisabled, "verbs-disabled", Refusal:
    "verbs are disabled by the configuration of the daemon";
    "Set `verbs.enabled = true` and restart the daemon.";

    351 VerbsGidUnknown, "verbs-gid-unknown", Refusal:
    "the host or guest of the queue pair has no interface with this GID";
    "Use a GID that `isthmus verbs list` shows where the peer runs: the peer has to use the daemon of the same host, or of a guest of it.";

    352 VerbsNumberUnknown, "verbs-number-unknown", Refusal:
    "no attached domain has this queue pair number";
    "Compare the number with `isthmus verbs list`: the peer's program has ended, it told a wrong number, or it runs on another host.";

    353 VerbsNumbersFull, "verbs-numbers-full", Refusal:
    "the domain or its user has its maximum of queue pair numbers, or the host has none left";
    "Destroy queue pairs that are not needed, or spread them over more processes; `isthmus verbs list` shows the numbers of each domain.";

    354 VerbsNumberTaken, "verbs-number-taken", Refusal:
    "the block of queue pair numbers belongs to another domain, or is none";
    "Start the program again: its queue pairs get new numbers.";

    /// Overlay
    400 OverlayForbidden, "overlay-forbidden", Refusal:
    "overlay networks belong to the host; only root and the daemon's user may change them";
    "Run `isthmus overlay` as root, or as the user that `isthmusd` runs as.";

    401 OverlayChangeInvalid, "overlay-change-invalid", Refusal:
    "the change does not lead to valid overlay networks, and nothing was changed";
    "Correct the command: the text says what is wrong, in the words of the configuration; `isthmus overlay list` shows the networks.";

    402 OverlayChangeFailed, "overlay-change-failed", Refusal:
    "the host cannot carry out the change of the overlay networks, and nothing was changed";
    "The text names the cause, such as a port that another program uses; remove it and try again.";
}
