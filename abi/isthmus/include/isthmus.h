/*
 * Isthmus: messages between the processes, containers and guests of one machine.
 *
 *   isth_attach(NULL, &me);                          a domain: this program's side of the daemon
 *   isth_open(me, ISTH_ENDPOINT_ANY, "web", &mine);  where messages arrive
 *   isth_lookup(me, "db", &them.domain);             whom to talk to
 *   isth_receive(me, mine, buffer, size, ctx, NULL); post receives ...
 *   isth_send(me, mine, them, 7, data, len, ctx, NULL);
 *   while (isth_wait(me, &done, -1) == 1) ...        ... and take completions
 *   isth_detach(me, 1000);
 *
 * Every call answers 0 (or what is said there), or a negative reason: -ISTH_REASON_... isth_strerror() has its text,
 * isth_last_error() the details of the case. A null pointer where something is needed is answered with
 * -ISTH_REASON_REQUEST_INVALID. A domain is undefined before isth_attach() and after isth_detach(), as memory is
 * before malloc() and after free(). Nothing happens outside of the calls: no thread, no signal handler.
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
 * Why something was refused, took a slower path, broke, or came to an end.
 */
enum isth_reason {
    ISTH_REASON_DAEMON_UNREACHABLE    =   1, /* no daemon answers, and none may be started here */
    ISTH_REASON_DAEMON_NOT_STARTED    =   2, /* no daemon answers, and starting one for this user failed */
    ISTH_REASON_SOCKET_DENIED         =   3, /* the kernel or a security module denies the connection to the daemon's socket */
    ISTH_REASON_SOCKET_UNTRUSTED      =   4, /* the folder of the daemon's socket belongs to somebody else, or others can write to it */
    ISTH_REASON_DAEMON_GONE           =   5, /* the connection to the daemon broke; it is being tried again */
    ISTH_REASON_DAEMON_SHUTDOWN       =   6, /* the daemon was told to stop */
    ISTH_REASON_DAEMON_IDLE           =   7, /* the daemon left because nobody had been attached for `daemon.idle_exit_s` */
    ISTH_REASON_DAEMON_SOCKET_TAKEN   =   8, /* another daemon serves this socket */
    ISTH_REASON_VERSION_TOO_OLD       =  20, /* the library is more than one minor version older than the daemon */
    ISTH_REASON_VERSION_TOO_NEW       =  21, /* the library is more than one minor version newer than the daemon */
    ISTH_REASON_VERSION_OTHER_MAJOR   =  22, /* library and daemon have different major versions */
    ISTH_REASON_NOT_ISTHMUS           =  23, /* what connected does not speak the control protocol */
    ISTH_REASON_HANDSHAKE_TIMEOUT     =  24, /* the connection said nothing for too long after it was made */
    ISTH_REASON_MALFORMED_CONTROL     =  25, /* a control message was not well formed */
    ISTH_REASON_OUT_OF_TURN           =  26, /* the message has no place at this stage of the connection */
    ISTH_REASON_TOO_MANY_REQUESTS     =  27, /* the connection asks for more in a second than any program needs, and is read more slowly */
    ISTH_REASON_NOT_READING           =  28, /* the domain did not read its control socket, and what was kept for it reached the limit */
    ISTH_REASON_CONNECTIONS_FULL      =  29, /* the daemon has as many connections as it takes from one user, or in all */
    ISTH_REASON_NOT_IN_VERSION        =  30, /* the version that the library and the daemon have in common does not know this request */
    ISTH_REASON_ATTACH_FORBIDDEN      =  40, /* the policy does not let this user attach */
    ISTH_REASON_TALK_FORBIDDEN        =  41, /* the policy does not let these two domains talk */
    ISTH_REASON_CHANNELS_FORBIDDEN    =  42, /* the policy keeps this pair on the ordinary path */
    ISTH_REASON_GRANTS_FORBIDDEN      =  43, /* the policy does not let regions be granted */
    ISTH_REASON_OTHER_OWNER           =  44, /* the two domains belong to different users, and between them nothing stays granted */
    ISTH_REASON_CAPTURE_FORBIDDEN     =  45, /* frames are those of all users, and only root and the daemon's own user may see them */
    ISTH_REASON_NAME_TAKEN            =  60, /* another domain has this name */
    ISTH_REASON_NAME_INVALID          =  61, /* this name cannot be a domain's: a letter d and digits mean a domain by its number */
    ISTH_REASON_DOMAINS_FULL          =  62, /* the daemon has as many domains as it takes */
    ISTH_REASON_OWNER_DOMAINS_FULL    =  63, /* this user has as many domains as the daemon takes from one */
    ISTH_REASON_ENDPOINTS_FULL        =  64, /* the domain has as many endpoints open as it may */
    ISTH_REASON_ENDPOINT_TAKEN        =  65, /* this endpoint is open already */
    ISTH_REASON_ENDPOINT_CLOSED       =  66, /* the domain has no such endpoint open */
    ISTH_REASON_NO_SUCH_DOMAIN        =  67, /* no domain is attached under this name or number */
    ISTH_REASON_NO_SUCH_CHANNEL       =  68, /* the domain has no such channel */
    ISTH_REASON_REQUEST_INVALID       =  69, /* the request asks for what cannot be, with the details in the text */
    ISTH_REASON_TICKET_INVALID        =  70, /* the proof that this domain was attached before does not hold */
    ISTH_REASON_STILL_ATTACHED        =  71, /* the domain that wants to be resumed is attached already */
    ISTH_REASON_PEER_DETACHED         =  80, /* the other domain left in order */
    ISTH_REASON_PEER_VANISHED         =  81, /* the other domain's connection broke: it was killed, crashed, or ended without leaving */
    ISTH_REASON_PEER_FAULT            =  82, /* the other domain was found to break the contract, and what it shared was closed */
    ISTH_REASON_CLOSED_BY_PEER        =  83, /* the other domain closed the channel in order */
    ISTH_REASON_REPLACED              =  84, /* the channel gave way to a newer one between the same domains */
    ISTH_REASON_CLOSED_HERE           =  85, /* this domain closed the channel in order */
    ISTH_REASON_CHANNEL_NOT_ASKED     = 100, /* nobody has asked for a channel yet: the first message does */
    ISTH_REASON_CHANNEL_PENDING       = 101, /* the channel is being made */
    ISTH_REASON_CHANNEL_REFUSED       = 102, /* the other domain does not want a channel */
    ISTH_REASON_CHANNEL_NO_ANSWER     = 103, /* the other domain did not answer the offer in time */
    ISTH_REASON_SAME_DOMAIN           = 104, /* both endpoints belong to one domain, and its messages stay in the library */
    ISTH_REASON_PLACES_FULL           = 105, /* the receiver's board has no place left for another channel of this owner */
    ISTH_REASON_BOARDS_FULL           = 106, /* the receiver has channels with domains of as many owners as it can have boards */
    ISTH_REASON_DAEMON_OUT_OF_FDS     = 107, /* the daemon has no file descriptor left */
    ISTH_REASON_OUT_OF_FDS            = 108, /* the process has no file descriptor left */
    ISTH_REASON_OUT_OF_MEMORY         = 109, /* the memory for it could not be had */
    ISTH_REASON_OUT_OF_ADDRESS_SPACE  = 110, /* the process may not map more memory: the limit of its address space (RLIMIT_AS) or of its mappings (vm.max_map_count) is reached */
    ISTH_REASON_FDS_IN_FLIGHT         = 111, /* too many file descriptors are under way in sockets of this user */
    ISTH_REASON_CHANNELS_FULL         = 112, /* one of the two domains has as many channels as it may */
    ISTH_REASON_KERNEL_REFUSED        = 113, /* the kernel refuses the daemon what it needs for it, with the details in the text */
    ISTH_REASON_CHANNELS_SWITCHED_OFF = 114, /* this domain was told to do without channels */
    ISTH_REASON_NO_COMMON_MEMORY      = 115, /* the two domains are on different machines, or one of them is in a guest, and have no memory in common */
    ISTH_REASON_MESSAGE_TOO_LONG      = 130, /* the message is longer than any can be */
    ISTH_REASON_MALFORMED_RECORD      = 131, /* a record in the ring was not well formed */
    ISTH_REASON_STAMP_FAULT           = 132, /* a cell of the ring was stamped with a lap that cannot be */
    ISTH_REASON_HEAD_OVERRUN          = 133, /* the consumer of the ring claims to have read what was never sent */
    ISTH_REASON_SLAB_OVERRUN          = 134, /* the consumer of the slab claims to have freed what was never sent */
    ISTH_REASON_PIECE_OUTSIDE         = 135, /* a record names bytes outside the slab */
    ISTH_REASON_RECORD_OUT_OF_PLACE   = 136, /* a record was well formed but has no place here: an unknown message, an epoch out of order, a peer that is no one */
    ISTH_REASON_CREDIT_EXCEEDED       = 137, /* a domain sent more on the ordinary path than its credit allows */
    ISTH_REASON_REGION_NOT_SEALED     = 150, /* the region offered is not sealed: it could shrink under its reader */
    ISTH_REASON_REGION_TOO_SMALL      = 151, /* the region offered is smaller than it says */
    ISTH_REASON_REGION_NOT_GRANTED    = 152, /* the message names a region that was not granted to the receiver */
    ISTH_REASON_REGIONS_FULL          = 153, /* the receiver keeps as many regions of this peer mapped as it may */
    ISTH_REASON_DOORBELL_INVALID      = 154, /* the doorbell offered is no event descriptor */
    ISTH_REASON_BUFFER_CACHE_OFF      = 170, /* keeping buffers in shared memory is switched off */
    ISTH_REASON_BUFFER_SMALL          = 171, /* the buffer is small or holds no whole page */
    ISTH_REASON_BUFFER_NEW            = 172, /* the buffer was not used often enough yet to be kept in shared memory */
    ISTH_REASON_BUFFER_REPLACED       = 173, /* the buffer was kept in shared memory, but other memory was found at its addresses */
    ISTH_REASON_BUFFER_NOT_ANONYMOUS  = 174, /* the buffer is memory of a file, of huge pages, or of the stack */
    ISTH_REASON_BUFFER_NOT_WRITABLE   = 175, /* a part of the buffer may not be written or not be read */
    ISTH_REASON_BUFFER_SHARED         = 176, /* the buffer is shared memory already */
    ISTH_REASON_BUFFER_UNMAPPED       = 177, /* a part of the buffer is not mapped */
    ISTH_REASON_BUFFER_SPECIAL        = 178, /* the program has special wishes for this memory (madvise, mlock2, userfaultfd) */
    ISTH_REASON_BUFFER_PINNED         = 179, /* the process has locked pages, or pages pinned for a device */
    ISTH_REASON_BUFFER_IN_USE         = 180, /* the buffer overlaps another one that is being sent */
    ISTH_REASON_BUFFER_CACHE_FULL     = 181, /* as many buffers are kept in shared memory as may be */
    ISTH_REASON_BUFFER_NO_QUERY       = 182, /* this kernel cannot say exactly what memory lies at an address */
    ISTH_REASON_BUFFER_NO_PROC        = 183, /* the process's own /proc/self/maps is not there */
    ISTH_REASON_BUFFER_OUT_OF_FDS     = 184, /* the process has no file descriptor left for shared memory */
    ISTH_REASON_BUFFER_OUT_OF_MEMORY  = 185, /* the memory or the number of mappings of the process is at its limit */
    ISTH_REASON_BUFFER_FILE_SIZE      = 186, /* files of the process may not be as large as the shared memory */
    ISTH_REASON_BUFFER_FORKED         = 187, /* the process is a child of the one that keeps buffers */
    ISTH_REASON_BUFFER_DENIED         = 188, /* the kernel refused to move the buffer into shared memory */
    ISTH_REASON_BUFFER_LOCK_LIMIT     = 189, /* the limit of locked memory does not allow the buffer to be moved into shared memory */
    ISTH_REASON_MEMORY_READ_ONLY      = 190, /* the memory is registered for reading only, and what peers reach by themselves they may write */
    ISTH_REASON_MEMORY_COUNTED        = 191, /* the program counts what others do in this memory, so they have to ask for it */
    ISTH_REASON_MEMORY_EDGE           = 192, /* the bytes share their page with memory that is not registered */
    ISTH_REASON_MEMORY_FORKED         = 193, /* the process has forked since the memory was registered */
    ISTH_REASON_MEMORY_THREADS        = 194, /* the process has other threads, and may not have them wait while the memory is moved (userfaultfd) */
    ISTH_REASON_MEMORY_TURN           = 195, /* the operation came before the peer had the memory, or after one that was still being asked for, or no processor does it at once */
    ISTH_REASON_BUFFER_GUEST_OFF      = 196, /* in a guest, buffers are moved into its window only where the program's user asks for that */
    ISTH_REASON_BUFFER_UNCACHED       = 197, /* the guest's window is not cached by its processor, and a buffer there would be slow */
    ISTH_REASON_LIBRARY_BROKEN        = 200, /* the library met a mistake of its own, and nothing is known of the state of this domain */
    ISTH_REASON_MX_NO_BOARD           = 210, /* there is no MX board of this number */
    ISTH_REASON_MX_NO_NIC             = 211, /* no MX board that can be reached has this nic id */
    ISTH_REASON_MX_ENDPOINT_BEYOND    = 212, /* the MX board does not have as many endpoint numbers */
    ISTH_REASON_MX_ENDPOINT_TAKEN     = 213, /* the MX endpoint number is taken, or all are where any was asked for */
    ISTH_REASON_MX_ENDPOINT_CLOSED    = 214, /* nobody has this MX endpoint number */
    ISTH_REASON_MX_BAD_KEY            = 215, /* the MX endpoint was opened with another key */
    ISTH_REASON_MX_NO_NUMBER          = 216, /* this endpoint has no MX endpoint number, and had none lately */
    ISTH_REASON_MX_OWNER_FULL         = 217, /* this user has as many MX endpoint numbers as the daemon gives to one */
    ISTH_REASON_OTHER_HOST            = 230, /* the peer is on another host, so there is no memory to share */
    ISTH_REASON_MX_UNREACHABLE        = 231, /* the MX board is known, but did not answer for too long */
    ISTH_REASON_MX_SEVERED            = 232, /* the MX endpoint on another host is not the one it was, or did not answer for too long */
    ISTH_REASON_MX_BROKEN             = 233, /* the transfer of a long message from another host came to no end */
    ISTH_REASON_MX_PARTNERS_FULL      = 234, /* the MX endpoint knows as many endpoints of other hosts as it may */
    ISTH_REASON_MX_NO_LINKS           = 235, /* the MX board has no links to other hosts, so no frames pass it */
    ISTH_REASON_HOST_SILENT           = 240, /* this daemon serves a guest, and its host's daemon does not answer */
    ISTH_REASON_GUEST_VECTORS_FULL    = 241, /* the guest's device has no vector left to wake another domain by */
    ISTH_REASON_NO_MONITOR            = 244, /* the two domains are in different guests, and the daemon was not given the monitors of both */
    ISTH_REASON_WINDOW_PENDING        = 245, /* the window that the two guests share is being plugged into both */
    ISTH_REASON_WINDOW_REFUSED        = 246, /* a monitor did not plug the window that two guests share, or a guest did not take it in time */
    ISTH_REASON_WINDOW_GONE           = 247  /* the window that two guests shared is gone */
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
 * Version of this header, to be compared with what isth_version() says of the library.
 */
#define ISTH_VERSION ((ISTH_VERSION_MAJOR << 16) | ISTH_VERSION_MINOR)

/**
 * isth_options.wait: as ISTHMUS_WAIT says, else adaptive.
 */
#define ISTH_WAIT_DEFAULT 0

/**
 * isth_options.wait: looks for a while, then sleeps.
 */
#define ISTH_WAIT_ADAPTIVE 1

/**
 * isth_options.wait: looks for ever; for a program with a processor to itself.
 */
#define ISTH_WAIT_SPIN 2

/**
 * isth_options.wait: sleeps at once.
 */
#define ISTH_WAIT_SLEEP 3

/**
 * isth_options.flags: where no daemon answers, none is started.
 */
#define ISTH_NO_AUTOSTART 1

/**
 * isth_options.flags: no page of the program is ever moved onto shared memory.
 */
#define ISTH_NO_REHOMING 2

/**
 * isth_options.flags: all messages go through the daemon.
 */
#define ISTH_NO_CHANNELS 4

/**
 * isth_open(): the lowest endpoint that is free.
 */
#define ISTH_ENDPOINT_ANY 0xffffffffU

/**
 * isth_completion.kind: the buffer may be used again; the message arrives, or the peer is gone.
 */
#define ISTH_SENT 1

/**
 * isth_completion.kind: a message is in the buffer.
 */
#define ISTH_RECEIVED 2

/**
 * isth_completion.kind: cancelled, or its endpoint closed, before anything happened.
 */
#define ISTH_CANCELLED 3

/**
 * isth_completion.kind: it did not work; isth_completion.reason says why.
 */
#define ISTH_FAILED 4

/**
 * A domain: the program's side of its daemon. Made by isth_attach(), ended by isth_detach().
 *
 * Threads may share it: calls take turns, and a thread that waits in isth_wait() lets others through. A process that forks keeps its
 * domains; in the child every call on them is refused with ISTH_REASON_STILL_ATTACHED, and the child may attach anew.
 */
typedef struct isth_domain isth_domain;

/**
 * How to attach. isth_options_init() makes it say nothing; where it says nothing, the environment decides
 * (ISTHMUS_DOMAIN, ISTHMUS_SOCKET, ...).
 */
typedef struct isth_options {
    /**
     * What the domain is called, up to 64 bytes of printable UTF-8 without '/'. Null: as ISTHMUS_DOMAIN says, else
     * a name made of the program's and the process number.
     */
    const char *name;
    /**
     * The daemon's socket. Null: as ISTHMUS_SOCKET says, else the first that answers of the usual ones.
     */
    const char *socket;
    /**
     * ISTH_WAIT_...
     */
    uint32_t wait;
    /**
     * How long adaptive waiting looks before it sleeps, up to 1000 microseconds. 0: as ISTHMUS_SPIN_US says, else 50.
     */
    uint32_t spin_us;
    /**
     * ISTH_NO_..., or'ed. What the environment forbids stays forbidden.
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
     * The domain's number, from isth_lookup() or from a message of it.
     */
    uint32_t domain;
    /**
     * The endpoint's number.
     */
    uint32_t endpoint;
} isth_address;

/**
 * An operation is over, and its buffer the program's again.
 */
typedef struct isth_completion {
    /**
     * What was given to isth_send() or isth_receive().
     */
    void *context;
    /**
     * The operation.
     */
    uint64_t token;
    /**
     * ISTH_RECEIVED: the sender's word.
     */
    uint64_t tag;
    /**
     * ISTH_RECEIVED: bytes of the message. Where the buffer is shorter, it holds the first ones.
     */
    uint64_t len;
    /**
     * ISTH_RECEIVED: who sent it.
     */
    struct isth_address from;
    /**
     * The endpoint it was posted to.
     */
    uint32_t endpoint;
    /**
     * ISTH_SENT, ISTH_RECEIVED, ISTH_CANCELLED or ISTH_FAILED.
     */
    uint32_t kind;
    /**
     * ISTH_FAILED: why, one of enum isth_reason. Otherwise 0.
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
 * Makes options that leave everything to the environment.
 *
 * The caller promises:
 *
 * 'options' is null or points to writable memory.
 */
int32_t isth_options_init(struct isth_options *options);

/**
 * Attaches to the daemon, starting one for this user where none answers and neither 'options' nor the environment
 * forbids it. 'options' may be null, which leaves everything to the environment. '*domain' is null where this
 * fails; isth_last_error(NULL) then has the details.
 *
 * The caller promises:
 *
 * 'options' is null or of isth_options_init(), and its strings end with a zero byte. 'domain' is null or points to
 * writable memory.
 */
int32_t isth_attach(const struct isth_options *options, struct isth_domain **domain);

/**
 * Leaves in order: what was sent is delivered as far as 'timeout_ms' allows (-1: all of it), then the domain is
 * freed, whatever this returns. Operations that are still pending end without a completion; their buffers are the
 * program's again. In the child of a fork only the child's copy is freed, and the parent stays attached.
 *
 * The caller promises:
 *
 * 'domain' is null or of isth_attach(), and no other call on it is under way or comes later.
 */
int32_t isth_detach(struct isth_domain *domain, int32_t timeout_ms);

/**
 * The domain's number, under which others send to it, in '*id'.
 *
 * The caller promises:
 *
 * 'domain' is null or attached. 'id' is null or writable.
 */
int32_t isth_domain_id(const struct isth_domain *domain, uint32_t *id);

/**
 * The domain's name. It stays where it is until isth_detach(). Null for a null domain.
 *
 * The caller promises:
 *
 * 'domain' is null or attached.
 */
const char *isth_domain_name(const struct isth_domain *domain);

/**
 * Opens an endpoint: 'wanted', or with ISTH_ENDPOINT_ANY the lowest that is free. 'label' is what `isthmus endpoint
 * list` calls it, and may be null.
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
 * The number of the domain of this name; a name such as "d7" means domain 7.
 *
 * The caller promises:
 *
 * 'domain' is null or attached. 'name' is null or ends with a zero byte. 'found' is null or writable.
 */
int32_t isth_lookup(struct isth_domain *domain, const char *name, uint32_t *found);

/**
 * Sends 'len' bytes. The completion, with 'context' in it, says when the bytes may change again: for up to 32 KiB on
 * a channel at once, for more when the receiver has them. '*token' names the operation, and may be null.
 *
 * The caller promises:
 *
 * 'domain' is null or attached. Until the completion (or isth_detach()) the 'len' bytes at 'data' are readable and
 * nobody writes them. 'token' is null or writable.
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
 * Posts a receive of up to 'len' bytes. The oldest takes the oldest message; of a longer one, the first bytes. The
 * completion has 'context' in it. '*token' names the operation, and may be null.
 *
 * The caller promises:
 *
 * 'domain' is null or attached. Until the completion (or isth_detach()) the 'len' bytes at 'data' are writable and
 * nobody else uses them. 'token' is null or writable.
 */
int32_t isth_receive(struct isth_domain *domain,
                     uint32_t endpoint,
                     void *data,
                     size_t len,
                     void *context,
                     uint64_t *token);

/**
 * Takes a posted receive back: 1 if it had not begun to receive, and its completion says ISTH_CANCELLED. Otherwise 0:
 * it is over, or will be in its own time, as sends are.
 *
 * The caller promises:
 *
 * 'domain' is null or attached.
 */
int32_t isth_cancel(struct isth_domain *domain,
                    uint64_t token);

/**
 * The next completion, if there is one: 1 and the completion, or 0. Looks once and never waits. Everything that goes
 * on in a domain goes on in here and in isth_wait().
 *
 * The caller promises:
 *
 * 'domain' is null or attached. 'completion' is null or writable.
 */
int32_t isth_poll(struct isth_domain *domain,
                  struct isth_completion *completion);

/**
 * The next completion: 1 and the completion, or 0 after 'timeout_ms' milliseconds (-1: waits for ever). A signal
 * handler does not end the wait. Other threads may use the domain meanwhile.
 *
 * The caller promises:
 *
 * 'domain' is null or attached. 'completion' is null or writable.
 */
int32_t isth_wait(struct isth_domain *domain, struct isth_completion *completion, int32_t timeout_ms);

/**
 * A descriptor for poll(2), epoll(7) or any event loop: readable when isth_poll() may find something, once isth_arm()
 * has answered 1. It is not to be read or closed, and stays the same until isth_detach().
 *
 * The caller promises:
 *
 * 'domain' is null or attached.
 */
int32_t isth_fd(const struct isth_domain *domain);

/**
 * Says that the program will sleep on isth_fd(). 1: sleep; 0: there is something already, so call isth_poll() until it
 * answers 0 and try again. Any other call on the domain, by any thread, ends this: arm as the last thing before each sleep.
 *
 * The caller promises:
 *
 * 'domain' is null or attached.
 */
int32_t isth_arm(struct isth_domain *domain);

/**
 * What happened, as part of a sentence, for a reason or the negative answer of a call. Constant.
 */
const char *isth_strerror(int32_t reason);

/**
 * What a person can do about it, as a sentence. Constant; empty for what is no reason.
 */
const char *isth_reason_remedy(int32_t reason);

/**
 * The identifier, as in the documentation, in JSON and in metrics: "name-taken". Constant; empty for what is no reason.
 */
const char *isth_reason_name(int32_t reason);

/**
 * The version of the library, as ISTH_VERSION is of the header: major << 16 | minor.
 */
uint32_t isth_version(void);

/**
 * The details of the last refusal on a domain, by any thread; with a null domain, of this thread's last
 * isth_attach(). Empty if there was none. The string stays until this thread asks again.
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
