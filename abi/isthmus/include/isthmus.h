/*
 * Isthmus: messages between the processes, containers and guests of one machine.
 *
 *   isth_attach(NULL, &me);                          a domain: this program's side of the daemon
 *   isth_open(me, ISTH_ENDPOINT_ANY, "web", &mine);  where messages arrive
 *   isth_lookup(me, "db", &them.domain);             find a peer by its name
 *   isth_receive(me, mine, buffer, size, ctx, NULL); post receives ...
 *   isth_send(me, mine, them, 7, data, len, ctx, NULL);
 *   while (isth_wait(me, &done, -1) == 1) ...        ... and take completions
 *   isth_detach(me, 1000);
 *
 * Every call returns 0, or the number that its comment names, or a negative reason: -ISTH_REASON_... isth_strerror()
 * returns the text of a reason, isth_last_error() the details of the case. A call that needs a pointer and gets a null
 * pointer returns -ISTH_REASON_REQUEST_INVALID. A domain is valid from isth_attach() to isth_detach(), as memory is from
 * malloc() to free(). The library works only inside its calls: it has no thread and no signal handler.
 *
 * Link with -listhmus.
 *
 * Printed from abi/isthmus/src by `UPDATE=1 cargo test -p isthmus-abi`.
 */

#ifndef ISTHMUS_H
#define ISTHMUS_H

#include <stddef.h>
#include <stdint.h>

/**
 * The reason why something was refused, took a slower path, broke, or came to an end.
 */
enum isth_reason {
    ISTH_REASON_DAEMON_UNREACHABLE         =   1, /* no daemon answers, and this program starts none */
    ISTH_REASON_DAEMON_NOT_STARTED         =   2, /* no daemon answers, and starting one for this user failed */
    ISTH_REASON_SOCKET_DENIED              =   3, /* the daemon serves another user alone, or the kernel or a security module denies the connection to its socket */
    ISTH_REASON_SOCKET_UNTRUSTED           =   4, /* the directory of the daemon's socket belongs to another user, or other users can write to it */
    ISTH_REASON_DAEMON_CONNECTION_LOST     =   5, /* the connection to the daemon broke; the library is reconnecting */
    ISTH_REASON_DAEMON_SHUTDOWN            =   6, /* the daemon was told to stop */
    ISTH_REASON_DAEMON_IDLE                =   7, /* the daemon exited because no domain had been attached for `daemon.idle_exit_s` seconds */
    ISTH_REASON_DAEMON_SOCKET_IN_USE       =   8, /* another daemon is already serving this socket */
    ISTH_REASON_VERSION_TOO_OLD            =  20, /* the library is more than one minor version older than the daemon */
    ISTH_REASON_VERSION_TOO_NEW            =  21, /* the library is more than one minor version newer than the daemon */
    ISTH_REASON_VERSION_OTHER_MAJOR        =  22, /* library and daemon have different major versions */
    ISTH_REASON_NOT_ISTHMUS                =  23, /* the connected program does not speak the control protocol */
    ISTH_REASON_HANDSHAKE_TIMEOUT          =  24, /* no message arrived on the connection within the handshake timeout */
    ISTH_REASON_MALFORMED_CONTROL          =  25, /* a control message was not well formed */
    ISTH_REASON_UNEXPECTED_MESSAGE_TYPE    =  26, /* the message is not allowed in this state of the connection */
    ISTH_REASON_TOO_MANY_REQUESTS          =  27, /* the connection exceeded its request rate and is read more slowly */
    ISTH_REASON_CONTROL_QUEUE_FULL         =  28, /* the domain did not read its control socket and its queue reached the limit */
    ISTH_REASON_CONNECTIONS_FULL           =  29, /* the limit of connections, per user or in total, is reached */
    ISTH_REASON_UNSUPPORTED_REQUEST        =  30, /* the negotiated protocol version does not include this request */
    ISTH_REASON_ATTACH_FORBIDDEN           =  40, /* the policy does not let this user attach */
    ISTH_REASON_TALK_FORBIDDEN             =  41, /* the policy does not allow messages between these two domains */
    ISTH_REASON_CHANNELS_FORBIDDEN         =  42, /* the policy keeps this pair on the daemon path */
    ISTH_REASON_GRANTS_FORBIDDEN           =  43, /* the policy does not let regions be granted */
    ISTH_REASON_DIFFERENT_OWNER            =  44, /* the two domains belong to different users, and regions do not stay mapped between users */
    ISTH_REASON_CAPTURE_FORBIDDEN          =  45, /* captures show frames of all users; only root and the daemon's user may capture */
    ISTH_REASON_NAME_FORBIDDEN             =  46, /* the policy binds this name to another user, group, cgroup or guest */
    ISTH_REASON_NOT_YOURS                  =  47, /* the object of the request belongs to another user, to another guest or to the host */
    ISTH_REASON_DIFFERENT_CONTAINER        =  48, /* the two programs are not known to be in one container, and regions do not stay mapped between containers */
    ISTH_REASON_NAME_TAKEN                 =  60, /* another domain has this name */
    ISTH_REASON_NAME_INVALID               =  61, /* the name is not a valid domain name: `d` and digits is reserved for domain numbers */
    ISTH_REASON_DOMAINS_FULL               =  62, /* the limit of domains is reached */
    ISTH_REASON_USER_DOMAINS_FULL          =  63, /* the user has its maximum of domains, or half of what other users leave */
    ISTH_REASON_ENDPOINTS_FULL             =  64, /* the limit of endpoints of one domain is reached */
    ISTH_REASON_ENDPOINT_TAKEN             =  65, /* this endpoint is open already */
    ISTH_REASON_ENDPOINT_CLOSED            =  66, /* the domain has no such endpoint open */
    ISTH_REASON_NO_SUCH_DOMAIN             =  67, /* no domain is attached under this name or number */
    ISTH_REASON_NO_SUCH_CHANNEL            =  68, /* the domain has no such channel */
    ISTH_REASON_REQUEST_INVALID            =  69, /* the request has an invalid argument; see the text */
    ISTH_REASON_TICKET_INVALID             =  70, /* the ticket of an earlier attachment is not valid */
    ISTH_REASON_STILL_ATTACHED             =  71, /* the domain that wants to be resumed is attached already */
    ISTH_REASON_PEER_DETACHED              =  80, /* the peer detached */
    ISTH_REASON_PEER_CONNECTION_LOST       =  81, /* the peer's connection broke: it was killed, crashed, or exited without detaching */
    ISTH_REASON_PEER_FAULT                 =  82, /* the peer violated the protocol, and the channel with it was closed */
    ISTH_REASON_CLOSED_BY_PEER             =  83, /* the peer closed the channel */
    ISTH_REASON_CHANNEL_REPLACED           =  84, /* a newer channel between the same domains replaced this one */
    ISTH_REASON_CLOSED_LOCALLY             =  85, /* this domain closed the channel */
    ISTH_REASON_MESSAGES_UNDELIVERED       =  86, /* a program closed its endpoint or exited before the receiver had taken messages that were over for the sender */
    ISTH_REASON_CHANNEL_NOT_REQUESTED      = 100, /* no channel was requested yet: the first message requests one */
    ISTH_REASON_CHANNEL_PENDING            = 101, /* the channel is being set up */
    ISTH_REASON_CHANNEL_REFUSED            = 102, /* the peer refused the channel */
    ISTH_REASON_CHANNEL_TIMEOUT            = 103, /* the peer did not answer the offer in time */
    ISTH_REASON_SAME_DOMAIN                = 104, /* both endpoints belong to one domain, and its messages stay in the library */
    ISTH_REASON_READY_MAP_FULL             = 105, /* the receiver's ready map has no bit left for another channel of this owner */
    ISTH_REASON_READY_MAPS_FULL            = 106, /* the receiver has the maximum number of ready maps, one per owner of its peers */
    ISTH_REASON_DAEMON_OUT_OF_FDS          = 107, /* the daemon has no file descriptors left */
    ISTH_REASON_OUT_OF_FDS                 = 108, /* the process has no file descriptor left */
    ISTH_REASON_OUT_OF_MEMORY              = 109, /* the memory could not be allocated */
    ISTH_REASON_OUT_OF_ADDRESS_SPACE       = 110, /* the process may not map more memory: the limit of its address space (RLIMIT_AS) or of its mappings (vm.max_map_count) is reached */
    ISTH_REASON_FDS_IN_FLIGHT              = 111, /* too many file descriptors are in flight in sockets of this user */
    ISTH_REASON_CHANNELS_FULL              = 112, /* one of the two domains has reached its limit of channels */
    ISTH_REASON_KERNEL_REFUSED             = 113, /* the kernel refused an operation of the daemon; see the text */
    ISTH_REASON_CHANNELS_DISABLED          = 114, /* channels are disabled in this domain */
    ISTH_REASON_NO_SHARED_MEMORY           = 115, /* the two domains share no memory: they are on different machines, or one of them is in a guest */
    ISTH_REASON_MESSAGE_TOO_LONG           = 130, /* the message exceeds the maximum length */
    ISTH_REASON_MALFORMED_RECORD           = 131, /* a record in the ring was not well formed */
    ISTH_REASON_CELL_STAMP_INVALID         = 132, /* a ring cell has an impossible stamp */
    ISTH_REASON_RING_HEAD_INVALID          = 133, /* the ring's consumer index is beyond the producer index */
    ISTH_REASON_SLAB_HEAD_INVALID          = 134, /* the slab's consumer index is beyond the producer index */
    ISTH_REASON_FRAGMENT_OUTSIDE_SLAB      = 135, /* a record refers to bytes outside the slab */
    ISTH_REASON_RECORD_UNEXPECTED          = 136, /* a well-formed record is not allowed here: unknown message, wrong epoch or unknown peer */
    ISTH_REASON_CREDIT_EXCEEDED            = 137, /* a domain sent more on the daemon path than its credit allows */
    ISTH_REASON_RING_NOT_READ              = 138, /* the domain did not read its ring, and the records that the daemon queued for it reached the limit */
    ISTH_REASON_REGION_NOT_SEALED          = 150, /* the region offered is not sealed: it could shrink under its reader */
    ISTH_REASON_REGION_TOO_SMALL           = 151, /* the offered region is smaller than declared */
    ISTH_REASON_REGION_NOT_GRANTED         = 152, /* the message names a region that was not granted to the receiver */
    ISTH_REASON_REGIONS_FULL               = 153, /* the receiver has mapped the maximum number of this peer's regions */
    ISTH_REASON_DOORBELL_INVALID           = 154, /* the offered doorbell is not an eventfd */
    ISTH_REASON_BUFFER_CACHE_DISABLED      = 170, /* the registration cache is disabled */
    ISTH_REASON_BUFFER_TOO_SMALL           = 171, /* the buffer is small or holds no whole page */
    ISTH_REASON_BUFFER_NEW                 = 172, /* the buffer was not used often enough yet to be migrated to shared memory */
    ISTH_REASON_BUFFER_REPLACED            = 173, /* the buffer was in shared memory, but its addresses are now mapped to other memory */
    ISTH_REASON_BUFFER_NOT_ANONYMOUS       = 174, /* the buffer is memory of a file, of huge pages, or of the stack */
    ISTH_REASON_BUFFER_NOT_WRITABLE        = 175, /* a part of the buffer may not be written or not be read */
    ISTH_REASON_BUFFER_SHARED              = 176, /* the buffer is shared memory already */
    ISTH_REASON_BUFFER_UNMAPPED            = 177, /* a part of the buffer is not mapped */
    ISTH_REASON_BUFFER_HAS_MEMORY_ADVICE   = 178, /* the program has set madvise, mlock2 or userfaultfd options on this memory */
    ISTH_REASON_BUFFER_PINNED              = 179, /* the process has locked pages, or pages pinned for a device */
    ISTH_REASON_BUFFER_IN_USE              = 180, /* the buffer overlaps another one that is being sent */
    ISTH_REASON_BUFFER_CACHE_FULL          = 181, /* the registration cache is full */
    ISTH_REASON_BUFFER_NO_PROCMAP_QUERY    = 182, /* the kernel does not support PROCMAP_QUERY */
    ISTH_REASON_BUFFER_NO_PROC             = 183, /* /proc/self/maps is not available */
    ISTH_REASON_BUFFER_OUT_OF_FDS          = 184, /* the process has no file descriptor left for shared memory */
    ISTH_REASON_BUFFER_OUT_OF_MEMORY       = 185, /* the memory or the number of mappings of the process is at its limit */
    ISTH_REASON_BUFFER_FILE_SIZE           = 186, /* files of the process may not be as large as the shared memory */
    ISTH_REASON_BUFFER_FORKED              = 187, /* the process is a forked child; the registration cache belongs to its parent */
    ISTH_REASON_BUFFER_DENIED              = 188, /* the kernel refused to move the buffer into shared memory */
    ISTH_REASON_BUFFER_LOCK_LIMIT          = 189, /* the limit of locked memory does not allow the buffer to be moved into shared memory */
    ISTH_REASON_MEMORY_READ_ONLY           = 190, /* the memory is registered read-only; directly accessible memory is also writable by peers */
    ISTH_REASON_MEMORY_HAS_COUNTER         = 191, /* a counter is bound to remote accesses of this memory, so the owner must perform them */
    ISTH_REASON_MEMORY_PAGE_SHARED         = 192, /* the bytes share a page with unregistered memory */
    ISTH_REASON_MEMORY_FORKED              = 193, /* the process has forked since the memory was registered */
    ISTH_REASON_MEMORY_THREADS             = 194, /* the process has other threads and may not use userfaultfd to stop them while memory is migrated */
    ISTH_REASON_MEMORY_NOT_READY           = 195, /* the memory was not mapped yet, an earlier request was pending, or the operation is not atomic in hardware */
    ISTH_REASON_BUFFER_CACHE_GUEST_DEFAULT = 196, /* in a guest, the registration cache is off unless it is enabled explicitly */
    ISTH_REASON_BUFFER_UNCACHED            = 197, /* the guest's window is mapped uncached, so a buffer there would be slow */
    ISTH_REASON_LIBRARY_PANICKED           = 200, /* the library panicked, and the state of this domain is unknown */
    ISTH_REASON_MX_BOARD_UNKNOWN           = 210, /* there is no MX board with this number */
    ISTH_REASON_MX_NIC_UNKNOWN             = 211, /* no reachable MX board has this NIC ID */
    ISTH_REASON_MX_ENDPOINT_OUT_OF_RANGE   = 212, /* the endpoint number is beyond the MX board's limit */
    ISTH_REASON_MX_ENDPOINT_TAKEN          = 213, /* the MX endpoint number is in use, or all numbers are */
    ISTH_REASON_MX_ENDPOINT_CLOSED         = 214, /* no endpoint has this MX endpoint number */
    ISTH_REASON_MX_BAD_KEY                 = 215, /* the MX endpoint was opened with another key */
    ISTH_REASON_MX_NUMBER_MISSING          = 216, /* the endpoint has no MX endpoint number and had none recently */
    ISTH_REASON_MX_USER_ENDPOINTS_FULL     = 217, /* the user has its maximum of MX endpoint numbers, or half of what other users leave */
    ISTH_REASON_OTHER_HOST                 = 230, /* the peer is on another host */
    ISTH_REASON_MX_UNREACHABLE             = 231, /* the MX board is known but did not answer in time */
    ISTH_REASON_MX_DISCONNECTED            = 232, /* the MX endpoint on the other host was reopened or did not answer in time */
    ISTH_REASON_MX_TRANSFER_FAILED         = 233, /* the transfer of a long message from another host failed */
    ISTH_REASON_MX_PARTNERS_FULL           = 234, /* the MX endpoint has reached its limit of remote endpoints */
    ISTH_REASON_MX_NO_LINKS                = 235, /* the MX board has no links to other hosts */
    ISTH_REASON_HOST_DAEMON_UNREACHABLE    = 240, /* this is a guest daemon, and the host daemon does not answer */
    ISTH_REASON_GUEST_VECTORS_FULL         = 241, /* the guest's device has no free interrupt vector */
    ISTH_REASON_MONITOR_MISSING            = 244, /* the two domains are in different guests, and the monitors of both are not configured */
    ISTH_REASON_PAIR_WINDOW_PENDING        = 245, /* the pair window is being plugged into both guests */
    ISTH_REASON_PAIR_WINDOW_REFUSED        = 246, /* the pair window could not be plugged, or a guest did not map it in time */
    ISTH_REASON_PAIR_WINDOW_CLOSED         = 247, /* the pair window was closed */
    ISTH_REASON_NOT_IN_GUESTS_YET          = 248, /* the capability is not supported in guests yet */
    ISTH_REASON_STREAMS_DISABLED           = 300, /* streams are disabled by the configuration of the daemon */
    ISTH_REASON_STREAM_NOT_TCP             = 301, /* the descriptor is not a TCP socket over IPv4 or IPv6 */
    ISTH_REASON_STREAM_WRONG_STATE         = 302, /* the TCP socket is not connected, or for a listener, is not listening */
    ISTH_REASON_STREAM_SOCKET_TWICE        = 303, /* the socket was shown before, by this program or by another one that shares it */
    ISTH_REASON_STREAM_UNIDENTIFIED        = 304, /* the two sockets are in different network namespaces, and the kernel has no proof that they are one connection */
    ISTH_REASON_STREAM_OWNER_DIFFERS       = 305, /* the programs at both ends belong to different users, and one of them has an older library, or the kernel records no connections */
    ISTH_REASON_STREAM_AMBIGUOUS           = 306, /* two sockets in other network namespaces could be the other end */
    ISTH_REASON_STREAM_PEER_MISSING        = 307, /* the socket at the other end was not shown within 60 seconds */
    ISTH_REASON_STREAM_DENIED              = 308, /* an address of the connection is in `sockets.deny`, or none is in `sockets.allow` */
    ISTH_REASON_STREAMS_FULL               = 309, /* the limit of streams, of shown or listening sockets, or of waiters is reached */
    ISTH_REASON_STREAM_VIOLATION           = 310, /* the program at the other end of a stream violated the protocol */
    ISTH_REASON_STREAM_ACROSS_NAMESPACES   = 311, /* the two sockets are in different network namespaces, and the kernel does not record connections for the daemon */
    ISTH_REASON_STREAM_UNRECORDED          = 312, /* the kernel has no record of the connection, so its other end is looked for in its network namespace only */
    ISTH_REASON_STREAM_FAST_OPEN           = 313, /* the connection began with data in its SYN (TCP Fast Open), so its other end is looked for in its network namespace only */
    ISTH_REASON_VERBS_DISABLED             = 350, /* verbs are disabled by the configuration of the daemon */
    ISTH_REASON_VERBS_GID_UNKNOWN          = 351, /* the host or guest of the queue pair has no interface with this GID */
    ISTH_REASON_VERBS_NUMBER_UNKNOWN       = 352, /* no attached domain has this queue pair number */
    ISTH_REASON_VERBS_NUMBERS_FULL         = 353, /* the domain or its user has its maximum of queue pair numbers, or the host has none left */
    ISTH_REASON_VERBS_NUMBER_TAKEN         = 354, /* the block of queue pair numbers belongs to another domain, or is none */
    ISTH_REASON_OVERLAY_FORBIDDEN          = 400, /* overlay networks belong to the host; only root and the daemon's user may change them */
    ISTH_REASON_OVERLAY_CHANGE_INVALID     = 401, /* the change does not lead to valid overlay networks, and nothing was changed */
    ISTH_REASON_OVERLAY_CHANGE_FAILED      = 402  /* the host cannot carry out the change of the overlay networks, and nothing was changed */
};

/**
 * Major version of this header.
 */
#define ISTH_VERSION_MAJOR 0

/**
 * Minor version of this header.
 */
#define ISTH_VERSION_MINOR 1

/**
 * Version of this header, to be compared with that of the library, isth_version().
 */
#define ISTH_VERSION ((ISTH_VERSION_MAJOR << 16) | ISTH_VERSION_MINOR)

/**
 * isth_options.wait: as ISTHMUS_WAIT says, else adaptive.
 */
#define ISTH_WAIT_DEFAULT 0

/**
 * isth_options.wait: spins for a while, then sleeps.
 */
#define ISTH_WAIT_ADAPTIVE 1

/**
 * isth_options.wait: spins and never sleeps; for a program with a processor of its own.
 */
#define ISTH_WAIT_SPIN 2

/**
 * isth_options.wait: sleeps at once.
 */
#define ISTH_WAIT_SLEEP 3

/**
 * isth_options.flags: if no daemon answers, starts none.
 */
#define ISTH_NO_AUTOSTART 1

/**
 * isth_options.flags: never moves a page of the program to shared memory.
 */
#define ISTH_NO_REGCACHE 2

/**
 * isth_options.flags: sends all messages through the daemon.
 */
#define ISTH_NO_CHANNELS 4

/**
 * isth_open(): the lowest endpoint that is free.
 */
#define ISTH_ENDPOINT_ANY 0xffffffffU

/**
 * isth_completion.kind: the buffer may be used again. The message arrives unless the peer is gone.
 */
#define ISTH_SENT 1

/**
 * isth_completion.kind: a message is in the buffer.
 */
#define ISTH_RECEIVED 2

/**
 * isth_completion.kind: the operation was cancelled, or its endpoint closed, before it began.
 */
#define ISTH_CANCELLED 3

/**
 * isth_completion.kind: the operation failed, for the reason in isth_completion.reason.
 */
#define ISTH_FAILED 4

/**
 * A domain: the program, as it is attached to its daemon. Created by isth_attach(), freed by isth_detach().
 *
 * Threads may share it: calls take turns, and a thread that waits in isth_wait() does not block others. A process that
 * forks keeps its domains; in the child every call on them is refused with ISTH_REASON_STILL_ATTACHED, and the child
 * may attach anew.
 */
typedef struct isth_domain isth_domain;

/**
 * Options of isth_attach(). The environment (ISTHMUS_DOMAIN, ISTHMUS_SOCKET, ...) decides about all fields that are as
 * isth_options_init() leaves them.
 */
typedef struct isth_options {
    /**
     * The name of the domain, up to 64 bytes of printable UTF-8 without '/'. Null: ISTHMUS_DOMAIN, or a name made
     * of the program's name and the process number.
     */
    const char *name;
    /**
     * The daemon's socket. Null: ISTHMUS_SOCKET, or the first of the usual sockets that answers.
     */
    const char *socket;
    /**
     * ISTH_WAIT_...
     */
    uint32_t wait;
    /**
     * The time that adaptive waiting spins before it sleeps, up to 1000 microseconds. 0: ISTHMUS_SPIN_US, or 50.
     */
    uint32_t spin_us;
    /**
     * ISTH_NO_..., or'ed. The environment can forbid more, but permit nothing that is forbidden here.
     */
    uint32_t flags;
    /**
     * Zero.
     */
    uint32_t reserved0;
    /**
     * Zero.
     */
    uint64_t reserved[4];
} isth_options;

/**
 * Where a message can be sent: an endpoint of a domain.
 */
typedef struct isth_address {
    /**
     * The number of the domain, from isth_lookup() or from a message of the domain.
     */
    uint32_t domain;
    /**
     * The endpoint's number.
     */
    uint32_t endpoint;
} isth_address;

/**
 * The end of an operation. Its buffer belongs to the program again.
 */
typedef struct isth_completion {
    /**
     * The context that was given to isth_send() or isth_receive().
     */
    void *context;
    /**
     * The token of the operation.
     */
    uint64_t token;
    /**
     * ISTH_RECEIVED: the tag that the sender gave.
     */
    uint64_t tag;
    /**
     * ISTH_RECEIVED: the length of the message. If the buffer is shorter, it holds the first bytes.
     */
    uint64_t len;
    /**
     * ISTH_RECEIVED: the sender.
     */
    struct isth_address from;
    /**
     * The endpoint of the operation.
     */
    uint32_t endpoint;
    /**
     * ISTH_SENT, ISTH_RECEIVED, ISTH_CANCELLED or ISTH_FAILED.
     */
    uint32_t kind;
    /**
     * ISTH_FAILED: the reason, one of enum isth_reason. Otherwise 0.
     */
    uint32_t reason;
    /**
     * Zero.
     */
    uint32_t reserved0;
    /**
     * Zero.
     */
    uint64_t reserved;
} isth_completion;

#ifdef __cplusplus
extern "C" {
#endif /* __cplusplus */

/**
 * Initializes options, so that the environment decides about all of them.
 *
 * The caller promises:
 *
 * 'options' is null or points to writable memory.
 */
int32_t isth_options_init(struct isth_options *options);

/**
 * Attaches to the daemon. If no daemon answers, starts one for this user, unless 'options' or the environment forbids
 * it. If 'options' is null, the environment decides about all options. After a failure '*domain' is null, and
 * isth_last_error(NULL) returns the details.
 *
 * The caller promises:
 *
 * 'options' is null or of isth_options_init(), and its strings end with a zero byte. 'domain' is null or points to
 * writable memory.
 */
int32_t isth_attach(const struct isth_options *options,
                    struct isth_domain **domain);

/**
 * Detaches: waits up to 'timeout_ms' milliseconds (-1: without a limit) until all sent messages are delivered, then
 * frees the domain, whatever it returns. Operations that are still pending end without a completion, and their buffers
 * belong to the program again. In the child of a fork, frees only the child's copy; the parent stays attached.
 *
 * The caller promises:
 *
 * 'domain' is null or of isth_attach(), and no other call on it is under way or comes later.
 */
int32_t isth_detach(struct isth_domain *domain,
                    int32_t timeout_ms);

/**
 * Stores the number of the domain, to which others send, in '*id'.
 *
 * The caller promises:
 *
 * 'domain' is null or attached. 'id' is null or writable.
 */
int32_t isth_domain_id(const struct isth_domain *domain, uint32_t *id);

/**
 * Returns the name of the domain. The string is valid until isth_detach(). Null for a null domain.
 *
 * The caller promises:
 *
 * 'domain' is null or attached.
 */
const char *isth_domain_name(const struct isth_domain *domain);

/**
 * Opens an endpoint: 'wanted', or with ISTH_ENDPOINT_ANY the lowest that is free. `isthmus endpoint list` shows
 * 'label', which may be null.
 *
 * The caller promises:
 *
 * 'domain' is null or attached. 'label' is null or ends with a zero byte. 'endpoint' is null or writable.
 */
int32_t isth_open(struct isth_domain *domain, uint32_t wanted, const char *label, uint32_t *endpoint);

/**
 * Closes an endpoint. Its posted receives complete as cancelled; messages that waited for them are dropped.
 *
 * The caller promises:
 *
 * 'domain' is null or attached.
 */
int32_t isth_close(struct isth_domain *domain, uint32_t endpoint);

/**
 * Stores the number of the domain of this name in '*found'. A name such as "d7" means domain 7.
 *
 * The caller promises:
 *
 * 'domain' is null or attached. 'name' is null or ends with a zero byte. 'found' is null or writable.
 */
int32_t isth_lookup(struct isth_domain *domain, const char *name, uint32_t *found);

/**
 * Sends 'len' bytes, and returns at once. From the completion on, which carries 'context', the bytes may change again.
 * It comes at once for up to 32 KiB on a channel, otherwise when the receiver has the bytes. The token of the operation
 * is stored in '*token', unless 'token' is null.
 *
 * The caller promises:
 *
 * 'domain' is null or attached. Until the completion (or isth_detach()) the 'len' bytes at 'data' are readable and
 * do not change. 'token' is null or writable.
 */
int32_t isth_send(struct isth_domain *domain,
                  uint32_t from,
                  struct isth_address to,
                  uint64_t tag,
                  const void *data,
                  size_t len,
                  void *context,
                  uint64_t *token);

/**
 * Posts a receive of up to 'len' bytes. The oldest receive takes the oldest message, or the first bytes of a longer
 * one. The completion carries 'context'. The token of the operation is stored in '*token', unless 'token' is null.
 *
 * The caller promises:
 *
 * 'domain' is null or attached. Until the completion (or isth_detach()) the 'len' bytes at 'data' are writable and
 * used by nothing else. 'token' is null or writable.
 */
int32_t isth_receive(struct isth_domain *domain,
                     uint32_t endpoint,
                     void *data,
                     size_t len,
                     void *context,
                     uint64_t *token);

/**
 * Cancels a posted receive. Returns 1 if it had not begun to receive; it then completes as ISTH_CANCELLED. Otherwise
 * returns 0: the receive is over, or completes later. A send cannot be cancelled.
 *
 * The caller promises:
 *
 * 'domain' is null or attached.
 */
int32_t isth_cancel(struct isth_domain *domain,
                    uint64_t token);

/**
 * Takes the next completion: returns 1 and the completion, or 0 if there is none. Never waits. All work of a domain is
 * done in this call and in isth_wait().
 *
 * The caller promises:
 *
 * 'domain' is null or attached. 'completion' is null or writable.
 */
int32_t isth_poll(struct isth_domain *domain,
                  struct isth_completion *completion);

/**
 * Waits for the next completion: returns 1 and the completion, or 0 after 'timeout_ms' milliseconds (-1: no limit). A
 * signal handler does not end the wait. Other threads may use the domain meanwhile.
 *
 * The caller promises:
 *
 * 'domain' is null or attached. 'completion' is null or writable.
 */
int32_t isth_wait(struct isth_domain *domain,
                  struct isth_completion *completion,
                  int32_t timeout_ms);

/**
 * Returns a descriptor for poll(2), epoll(7) or any event loop. After isth_arm() has returned 1, it is readable when
 * isth_poll() may find a completion. Do not read or close it. It stays the same until isth_detach().
 *
 * The caller promises:
 *
 * 'domain' is null or attached.
 */
int32_t isth_fd(const struct isth_domain *domain);

/**
 * Prepares for a sleep on isth_fd(). Returns 1 if the program may sleep. Returns 0 if there is work already: call
 * isth_poll() until it returns 0, and try again. Any other call on the domain, by any thread, ends this state, so this
 * is the last call before each sleep.
 *
 * The caller promises:
 *
 * 'domain' is null or attached.
 */
int32_t isth_arm(struct isth_domain *domain);

/**
 * Returns the meaning of a reason, or of the negative result of a call, as part of a sentence. Constant.
 */
const char *isth_strerror(int32_t reason);

/**
 * Returns the remedy for a reason, as a sentence. Constant; empty if the number is no reason.
 */
const char *isth_reason_remedy(int32_t reason);

/**
 * Returns the identifier of a reason, as in the documentation, in JSON and in metrics: "name-taken". Constant; empty if
 * the number is no reason.
 */
const char *isth_reason_name(int32_t reason);

/**
 * Returns the version of the library, in the form of ISTH_VERSION: major << 16 | minor.
 */
uint32_t isth_version(void);

/**
 * Returns the details of the last refusal on a domain, by any thread; with a null domain, those of this thread's last
 * isth_attach(). Empty if there was none. The string is valid until this thread calls this function again.
 *
 * The caller promises:
 *
 * 'domain' is null or attached.
 */
const char *isth_last_error(const struct isth_domain *domain);

#ifdef __cplusplus
}  /* extern "C" */
#endif  /* __cplusplus */

#endif  /* ISTHMUS_H */
