//! The table of reasons: code, enum variant, identifier, kind, what happened, what can be done about it.

use super::Kind;

reasons! {
    /// Reaching a daemon
    1 DaemonUnreachable, "daemon-unreachable", Refusal:
    "no daemon answers, and none may be started here";
    "Start `isthmusd`, mount the folder of its socket into the container, set `ISTHMUS_SOCKET`, or unset `ISTHMUS_AUTOSTART`.";

    2 DaemonNotStarted, "daemon-not-started", Refusal:
    "no daemon answers, and starting one for this user failed";
    "Run `isthmusd --user` by hand and read what it says; `isthmusd` has to be in `PATH` or beside the library.";

    3 SocketDenied, "socket-denied", Refusal:
    "the kernel or a security module denies the connection to the daemon's socket";
    "Check the mode and owner of the socket and its folder, and the log of SELinux or AppArmor for a denial of `connectto`.";

    4 SocketUntrusted, "socket-untrusted", Refusal:
    "the folder of the daemon's socket belongs to somebody else, or others can write to it";
    "Remove the folder, or set `ISTHMUS_SOCKET` to a place that only you can write to.";

    5 DaemonGone, "daemon-gone", Ended:
    "the connection to the daemon broke; it is being tried again";
    "None needed: channels go on, and the domain resumes when a daemon answers. See the daemon's log for why it ended.";

    6 DaemonShutdown, "daemon-shutdown", Ended:
    "the daemon was told to stop";
    "Start it again: domains that are still there resume.";

    7 DaemonIdle, "daemon-idle", Ended:
    "the daemon left because nobody had been attached for `daemon.idle_exit_s`";
    "None needed: the library starts another one when it attaches.";

    8 DaemonSocketTaken, "daemon-socket-taken", Refusal:
    "another daemon serves this socket";
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
    "what connected does not speak the control protocol";
    "Only Isthmus libraries and tools connect to this socket; see docs/spec/control.md.";

    24 HandshakeTimeout, "handshake-timeout", Refusal:
    "the connection said nothing for too long after it was made";
    "A library says hello at once: look for a stopped process, or for a tool that only holds the connection open.";

    25 MalformedControl, "malformed-control", Fault:
    "a control message was not well formed";
    "Use the library as it is; if it is unchanged, report it with the text of the log line.";

    26 OutOfTurn, "out-of-turn", Refusal:
    "the message has no place at this stage of the connection";
    "Say `Hello` first and once, `Attach` once, and the rest when attached.";

    27 TooManyRequests, "too-many-requests", Fallback:
    "the connection asks for more in a second than any program needs, and is read more slowly";
    "Keep what was answered instead of asking again; if the program is right, report it.";

    28 NotReading, "not-reading", Ended:
    "the domain did not read its control socket, and what was kept for it reached the limit";
    "Let the program call the library, or let the library's descriptor wake it; a stopped process attaches again when it continues.";

    29 ConnectionsFull, "connections-full", Refusal:
    "the daemon has as many connections as it takes from one user, or in all";
    "Close connections that are not needed, or raise `limits.domains_max` and `limits.domains_per_user_max`.";

    30 NotInVersion, "not-in-version", Refusal:
    "the version that the library and the daemon have in common does not know this request";
    "Update whichever of the two is older: the request is of a newer minor version.";

    /// Policy
    40 AttachForbidden, "attach-forbidden", Refusal:
    "the policy does not let this user attach";
    "Add the user to `policy.attach`, or run a daemon for the user with `isthmusd --user`. In a guest without the driver (`kmod/`) only root may: load it.";

    41 TalkForbidden, "talk-forbidden", Refusal:
    "the policy does not let these two domains talk";
    "Allow the pair in `policy.rules`, or set `policy.talk`.";

    42 ChannelsForbidden, "channels-forbidden", Fallback:
    "the policy keeps this pair on the ordinary path";
    "Set `policy.channels`, or `channel = true` in the rule that matches the pair.";

    43 GrantsForbidden, "grants-forbidden", Fallback:
    "the policy does not let regions be granted";
    "Set `policy.grants`.";

    44 OtherOwner, "other-owner", Fallback:
    "the two domains belong to different users, and between them nothing stays granted";
    "Run both as one user, if each may see what the other one sends later from the same buffer.";

    45 CaptureForbidden, "capture-forbidden", Refusal:
    "frames are those of all users, and only root and the daemon's own user may see them";
    "Run `isthmus capture` as root, or as the user that `isthmusd` runs as.";

    /// Names and numbers
    60 NameTaken, "name-taken", Refusal:
    "another domain has this name";
    "Attach under another name, or without one.";

    61 NameInvalid, "name-invalid", Refusal:
    "this name cannot be a domain's: a letter d and digits mean a domain by its number";
    "Attach under another name.";

    62 DomainsFull, "domains-full", Refusal:
    "the daemon has as many domains as it takes";
    "Raise `limits.domains_max`.";

    63 OwnerDomainsFull, "owner-domains-full", Refusal:
    "this user has as many domains as the daemon takes from one";
    "Raise `limits.domains_per_user_max`.";

    64 EndpointsFull, "endpoints-full", Refusal:
    "the domain has as many endpoints open as it may";
    "Close endpoints that are not needed (`isthmus endpoint list` shows them), or raise `limits.endpoints_per_domain_max`.";

    65 EndpointTaken, "endpoint-taken", Refusal:
    "this endpoint is open already";
    "Ask for another one, or for any.";

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
    "the request asks for what cannot be, with the details in the text";
    "See the text: a number of arguments, or a value out of its range.";

    70 TicketInvalid, "ticket-invalid", Refusal:
    "the proof that this domain was attached before does not hold";
    "None needed: the library attaches anew. It happens when the daemon's key was removed, or another user shows the ticket.";

    71 StillAttached, "still-attached", Refusal:
    "the domain that wants to be resumed is attached already";
    "Only one process can be a domain: after a fork, the child attaches anew.";

    /// Coming and going
    80 PeerDetached, "peer-detached", Ended:
    "the other domain left in order";
    "None needed.";

    81 PeerVanished, "peer-vanished", Ended:
    "the other domain's connection broke: it was killed, crashed, or ended without leaving";
    "See how its process ended; the kernel's log tells of the OOM killer.";

    82 PeerFault, "peer-fault", Ended:
    "the other domain was found to break the contract, and what it shared was closed";
    "See the counted fault in `isthmus channel list` and the daemon's log.";

    83 ClosedByPeer, "closed-by-peer", Ended:
    "the other domain closed the channel in order";
    "None needed.";

    84 Replaced, "replaced", Ended:
    "the channel gave way to a newer one between the same domains";
    "None needed.";

    85 ClosedHere, "closed-here", Ended:
    "this domain closed the channel in order";
    "None needed.";

    /// Making channels
    100 ChannelNotAsked, "channel-not-asked", Fallback:
    "nobody has asked for a channel yet: the first message does";
    "None needed.";

    101 ChannelPending, "channel-pending", Fallback:
    "the channel is being made";
    "None needed: it takes well below a millisecond if the listener is running.";

    102 ChannelRefused, "channel-refused", Fallback:
    "the other domain does not want a channel";
    "See whether its library was told to do without (`ISTHMUS_CHANNELS=0`).";

    103 ChannelNoAnswer, "channel-no-answer", Fallback:
    "the other domain did not answer the offer in time";
    "Let its program call the library now and then; see whether its process is stopped.";

    104 SameDomain, "same-domain", Fallback:
    "both endpoints belong to one domain, and its messages stay in the library";
    "None needed: nothing is faster.";

    105 PlacesFull, "places-full", Fallback:
    "the receiver's board has no place left for another channel of this owner";
    "Use fewer domains that talk all-to-all: a board has 4096 places.";

    106 BoardsFull, "boards-full", Fallback:
    "the receiver has channels with domains of as many owners as it can have boards";
    "Run fewer different users against one domain.";

    107 DaemonOutOfFds, "daemon-out-of-fds", Fallback:
    "the daemon has no file descriptor left";
    "Raise `LimitNOFILE=` of the daemon's unit, or `ulimit -n` of the shell that started it.";

    108 OutOfFds, "out-of-fds", Fallback:
    "the process has no file descriptor left";
    "Raise `ulimit -n` (RLIMIT_NOFILE) of the program.";

    109 OutOfMemory, "out-of-memory", Fallback:
    "the memory for it could not be had";
    "Raise the memory limit of the control group of whoever the text names, or use fewer channels.";

    110 OutOfAddressSpace, "out-of-address-space", Fallback:
    "the process may not map more memory: the limit of its address space (RLIMIT_AS) or of its mappings (vm.max_map_count) is reached";
    "Raise `ulimit -v` (RLIMIT_AS) of the program, or `vm.max_map_count`.";

    111 FdsInFlight, "fds-in-flight", Fallback:
    "too many file descriptors are under way in sockets of this user";
    "Raise `ulimit -n`: the kernel allows as many under way as a process may have open.";

    112 ChannelsFull, "channels-full", Fallback:
    "one of the two domains has as many channels as it may";
    "Raise `limits.channels_per_domain_max`, or use fewer peers.";

    113 KernelRefused, "kernel-refused", Fallback:
    "the kernel refuses the daemon what it needs for it, with the details in the text";
    "See the text: seccomp, a security module or a limit of the system may forbid it.";

    114 ChannelsSwitchedOff, "channels-switched-off", Fallback:
    "this domain was told to do without channels";
    "Unset `ISTHMUS_CHANNELS=0`.";

    115 NoCommonMemory, "no-common-memory", Fallback:
    "the two domains are on different machines, or one of them is in a guest, and have no memory in common";
    "None needed: the daemon of the host copies between them.";

    /// Messages and what peers write into shared memory
    130 MessageTooLong, "message-too-long", Refusal:
    "the message is longer than any can be";
    "Send it in parts.";

    131 MalformedRecord, "malformed-record", Fault:
    "a record in the ring was not well formed";
    "Look for a program that overwrites its memory; otherwise the other domain is hostile.";

    132 StampFault, "stamp-fault", Fault:
    "a cell of the ring was stamped with a lap that cannot be";
    "Look for a program that overwrites its memory; otherwise the other domain is hostile.";

    133 HeadOverrun, "head-overrun", Fault:
    "the consumer of the ring claims to have read what was never sent";
    "Look for a program that overwrites its memory; otherwise the other domain is hostile.";

    134 SlabOverrun, "slab-overrun", Fault:
    "the consumer of the slab claims to have freed what was never sent";
    "Look for a program that overwrites its memory; otherwise the other domain is hostile.";

    135 PieceOutside, "piece-outside", Fault:
    "a record names bytes outside the slab";
    "Look for a program that overwrites its memory; otherwise the other domain is hostile.";

    136 RecordOutOfPlace, "record-out-of-place", Fault:
    "a record was well formed but has no place here: an unknown message, an epoch out of order, a peer that is no one";
    "Report it with the text of the log line, if both libraries are unchanged.";

    137 CreditExceeded, "credit-exceeded", Fault:
    "a domain sent more on the ordinary path than its credit allows";
    "Report it, if its library is unchanged.";

    /// Regions and grants
    150 RegionNotSealed, "region-not-sealed", Fault:
    "the region offered is not sealed: it could shrink under its reader";
    "Use the library as it is: it seals its regions.";

    151 RegionTooSmall, "region-too-small", Fault:
    "the region offered is smaller than it says";
    "Use the library as it is; if it is unchanged, report it.";

    152 RegionNotGranted, "region-not-granted", Fallback:
    "the message names a region that was not granted to the receiver";
    "None needed: the message goes through the slab.";

    153 RegionsFull, "regions-full", Fallback:
    "the receiver keeps as many regions of this peer mapped as it may";
    "None needed: the oldest are let go. Use fewer large buffers to spare the change.";

    154 DoorbellInvalid, "doorbell-invalid", Fault:
    "the doorbell offered is no event descriptor";
    "Use the library as it is; if it is unchanged, report it.";

    /// Buffers of large messages
    170 BufferCacheOff, "buffer-cache-off", Fallback:
    "keeping buffers in shared memory is switched off";
    "Unset `ISTHMUS_RCACHE` or `MX_RCACHE`.";

    171 BufferSmall, "buffer-small", Fallback:
    "the buffer is small or holds no whole page";
    "None needed.";

    172 BufferNew, "buffer-new", Fallback:
    "the buffer was not used often enough yet to be kept in shared memory";
    "Use buffers again instead of allocating new ones.";

    173 BufferReplaced, "buffer-replaced", Fallback:
    "the buffer was kept in shared memory, but other memory was found at its addresses";
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

    178 BufferSpecial, "buffer-special", Fallback:
    "the program has special wishes for this memory (madvise, mlock2, userfaultfd)";
    "Send from memory without such wishes.";

    179 BufferPinned, "buffer-pinned", Fallback:
    "the process has locked pages, or pages pinned for a device";
    "Lock memory after its first messages, or not at all.";

    180 BufferInUse, "buffer-in-use", Fallback:
    "the buffer overlaps another one that is being sent";
    "Wait for the other message to complete.";

    181 BufferCacheFull, "buffer-cache-full", Fallback:
    "as many buffers are kept in shared memory as may be";
    "Use fewer large buffers, or smaller ones.";

    182 BufferNoQuery, "buffer-no-query", Fallback:
    "this kernel cannot say exactly what memory lies at an address";
    "Run Linux 6.11 or later (PROCMAP_QUERY).";

    183 BufferNoProc, "buffer-no-proc", Fallback:
    "the process's own /proc/self/maps is not there";
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
    "the process is a child of the one that keeps buffers";
    "Attach in the child anew.";

    188 BufferDenied, "buffer-denied", Fallback:
    "the kernel refused to move the buffer into shared memory";
    "See the log of the security module (SELinux, AppArmor, seccomp).";

    189 BufferLockLimit, "buffer-lock-limit", Fallback:
    "the limit of locked memory does not allow the buffer to be moved into shared memory";
    "Raise `ulimit -l` (RLIMIT_MEMLOCK), or do not lock all memory with mlockall.";

    /// Memory that is registered for others
    190 MemoryReadOnly, "memory-read-only", Fallback:
    "the memory is registered for reading only, and what peers reach by themselves they may write";
    "Register it for remote writes too, if all peers of the same user may write there.";

    191 MemoryCounted, "memory-counted", Fallback:
    "the program counts what others do in this memory, so they have to ask for it";
    "Bind no counter for remote reads or writes to the endpoint or the region, if the count is not needed.";

    192 MemoryEdge, "memory-edge", Fallback:
    "the bytes share their page with memory that is not registered";
    "Register whole pages: memory whose start and length are multiples of 4096.";

    193 MemoryForked, "memory-forked", Fallback:
    "the process has forked since the memory was registered";
    "Register it again after the fork, or start programs by `posix_spawn` or `system`, which are no forks.";

    194 MemoryThreads, "memory-threads", Fallback:
    "the process has other threads, and may not have them wait while the memory is moved (userfaultfd)";
    "Set `vm.unprivileged_userfaultfd` to 1, give the process CAP_SYS_PTRACE, or register before other threads are made.";

    195 MemoryTurn, "memory-turn", Fallback:
    "the operation came before the peer had the memory, or after one that was still being asked for, or no processor does it at once";
    "None needed: those that follow are done in the memory itself.";

    /// Buffers of large messages, in guests
    196 BufferGuestOff, "buffer-guest-off", Fallback:
    "in a guest, buffers are moved into its window only where the program's user asks for that";
    "Set `ISTHMUS_RCACHE=1` or `MX_RCACHE=1`, unless the program does with its buffers what a device's memory does not allow.";

    197 BufferUncached, "buffer-uncached", Fallback:
    "the guest's window is not cached by its processor, and a buffer there would be slow";
    "Give the guest a window of 4 GiB (`window_mib = 4096`), or plug its device in while it runs.";

    /// The library itself
    200 LibraryBroken, "library-broken", Ended:
    "the library met a mistake of its own, and nothing is known of the state of this domain";
    "Detach and attach anew; report it with the text of the last error.";

    /// MX
    210 MxNoBoard, "mx-no-board", Refusal:
    "there is no MX board of this number";
    "See the boards with `isthmus board list`, or declare another `[[mx.board]]` in the daemon's configuration.";

    211 MxNoNic, "mx-no-nic", Refusal:
    "no MX board that can be reached has this nic id";
    "See who can be reached with `isthmus peer list`.";

    212 MxEndpointBeyond, "mx-endpoint-beyond", Refusal:
    "the MX board does not have as many endpoint numbers";
    "Use a lower number, or raise `endpoints_max` of the board in the daemon's configuration.";

    213 MxEndpointTaken, "mx-endpoint-taken", Refusal:
    "the MX endpoint number is taken, or all are where any was asked for";
    "See whose they are with `isthmus endpoint list`; ask for any number, raise `endpoints_max`, or declare another `[[mx.board]]`.";

    214 MxEndpointClosed, "mx-endpoint-closed", Refusal:
    "nobody has this MX endpoint number";
    "Open the endpoint before it is connected to; `isthmus endpoint list` shows which are open.";

    215 MxBadKey, "mx-bad-key", Refusal:
    "the MX endpoint was opened with another key";
    "Give both programs the same key (the filter of `mx_open_endpoint` and `mx_connect`).";

    216 MxNoNumber, "mx-no-number", Refusal:
    "this endpoint has no MX endpoint number, and had none lately";
    "Ask while the domain is there: numbers are kept for the 4096 endpoints that left last.";

    217 MxOwnerFull, "mx-owner-full", Refusal:
    "this user has as many MX endpoint numbers as the daemon gives to one";
    "Close endpoints that are not needed (`isthmus endpoint list` shows them), or raise `limits.mx_endpoints_per_user_max`.";

    /// Other hosts
    230 OtherHost, "other-host", Fallback:
    "the peer is on another host, so there is no memory to share";
    "None: messages go by the daemons and the network between them.";

    231 MxUnreachable, "mx-unreachable", Refusal:
    "the MX board is known, but did not answer for too long";
    "See with `isthmus peer list` when it was last heard, and whether a link to it is up; `isthmus capture` shows what is sent.";

    232 MxSevered, "mx-severed", Ended:
    "the MX endpoint on another host is not the one it was, or did not answer for too long";
    "Connect again. See with `isthmus peer list` when its host was last heard.";

    233 MxBroken, "mx-broken", Ended:
    "the transfer of a long message from another host came to no end";
    "Send it again; the log of the daemon there says more.";

    234 MxPartnersFull, "mx-partners-full", Refusal:
    "the MX endpoint knows as many endpoints of other hosts as it may";
    "Close endpoints that are not needed and open them anew, or spread the work over more endpoints.";

    235 MxNoLinks, "mx-no-links", Refusal:
    "the MX board has no links to other hosts, so no frames pass it";
    "Give it `links` in the daemon's configuration and start the daemon anew; `isthmus board list` shows which boards have some.";

    /// Guests
    240 HostSilent, "host-silent", Refusal:
    "this daemon serves a guest, and its host's daemon does not answer";
    "Start `isthmusd` on the host; name a guest of QEMU in its configuration, or let a guest of Xen in with `isthmus guest allow`. The log of the guest's daemon says what it sees of its host.";

    241 GuestVectorsFull, "guest-vectors-full", Refusal:
    "the guest's device has no vector left to wake another domain by";
    "Raise `vectors` of the guest in the host's configuration, or end domains that are not needed.";

    244 NoMonitor, "no-monitor", Fallback:
    "the two domains are in different guests, and the daemon was not given the monitors of both";
    "Name the monitor of each guest (`monitor` of `[[kvm.guest]]`); the daemon then plugs a window into both that only these two share.";

    245 WindowPending, "window-pending", Fallback:
    "the window that the two guests share is being plugged into both";
    "None needed: messages take the ordinary path until it is there.";

    246 WindowRefused, "window-refused", Fallback:
    "a monitor did not plug the window that two guests share, or a guest did not take it in time";
    "The daemon's log has the details: the monitor's socket, a free slot that can be plugged into, the driver and the daemon in the guest.";

    247 WindowGone, "window-gone", Ended:
    "the window that two guests shared is gone";
    "Send again: messages take the ordinary path, and the next window may be made.";
}
