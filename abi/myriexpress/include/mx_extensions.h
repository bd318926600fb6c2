/*
 * MX: what middleware uses beside myriexpress.h.
 */
#ifndef MX_EXTENSIONS_H
#define MX_EXTENSIONS_H

#include "myriexpress.h"

#ifdef __cplusplus
extern "C" {
#endif

/* mx_iconnect() has its argument 'match_info'. */
#define MX_HAS_ICONNECT_V2 1

/* Starts to connect; a request that ends with the new address in status.source. */
mx_return_t mx_iconnect(mx_endpoint_t endpoint, uint64_t nic_id, uint32_t endpoint_id, uint32_t key,
                        uint64_t match_info, void *context, mx_request_t *request);

/* Forgets a peer's endpoint: requests to it end, its messages without a receive are dropped, and the address is invalid. */
mx_return_t mx_disconnect(mx_endpoint_t endpoint, mx_endpoint_addr_t address);

/*
 * Called for a message that no receive waits for, in a call of the program's, before the message is kept. 'data' points
 * to all of its bytes where they are here already, and is NULL otherwise; it is valid during the call. Calls of this
 * library work in there, but nothing happens on the endpoint until the handler returns.
 *
 * MX_RECV_CONTINUE: receives that were posted meanwhile may have it, or else it is kept. MX_RECV_FINISHED: it is dropped.
 */
typedef enum mx_unexp_handler_action {
    MX_RECV_CONTINUE = 0,
    MX_RECV_FINISHED = 1
} mx_unexp_handler_action_t;

typedef mx_unexp_handler_action_t (*mx_unexp_handler_t)(void *context, mx_endpoint_addr_t source, uint64_t match_info,
                                                        uint32_t length, void *data_if_available);

/* One handler for an endpoint; NULL takes it away. */
mx_return_t mx_register_unexp_handler(mx_endpoint_t endpoint, mx_unexp_handler_t handler, void *context);

/* Nobody wants to know how it ends. '*request' is NULL afterwards. */
mx_return_t mx_forget(mx_endpoint_t endpoint, mx_request_t *request);

/* Has everything happen that can. */
mx_return_t mx_progress(mx_endpoint_t endpoint);

/* A pointer of the program's for each address; NULL at first. */
mx_return_t mx_set_endpoint_addr_context(mx_endpoint_addr_t address, void *context);
mx_return_t mx_get_endpoint_addr_context(mx_endpoint_addr_t address, void **context);

/*
 * How long a request may take; of all later ones, where 'request' is NULL. MX_INFINITE: no limit. A send that the receiver has
 * not taken by then, and a connect without an answer, end with MX_STATUS_TIMEOUT; the message may still arrive. A receive has
 * no limit.
 */
mx_return_t mx_set_request_timeout(mx_endpoint_t endpoint, mx_request_t request, uint32_t timeout_ms);

/* As mx_decompose_endpoint_addr(), with the number of the session. */
mx_return_t mx_decompose_endpoint_addr2(mx_endpoint_addr_t address, uint64_t *nic_id, uint32_t *endpoint_id,
                                        uint32_t *session_id);

#ifdef __cplusplus
}
#endif

#endif /* MX_EXTENSIONS_H */
