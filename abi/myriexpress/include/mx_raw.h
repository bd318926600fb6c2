/*
 * MX: raw endpoints, for programs that map a network: whole Ethernet frames, and the table of peers.
 *
 * No call here calls an error handler.
 */
#ifndef MX_RAW_H
#define MX_RAW_H

#include "mx_io.h"
#include "myriexpress.h"

#ifdef __cplusplus
extern "C" {
#endif

#define MX_RAW_POLL_SUPPORTED 1
#define MX_SET_ROUTE_TAKES_MAGID 1
#define MX_HAS_RAW_LINE_SPEED 1
#define MX_HAS_RAW_SET_NIC_REPLY_INFO 1

typedef struct mx_raw_endpoint *mx_raw_endpoint_t;

/* What mx_raw_next_event() found. Macros, because programs ask the preprocessor for them. */
typedef int mx_raw_status_t;
#define MX_RAW_NO_EVENT 0
#define MX_RAW_SEND_COMPLETE 1
#define MX_RAW_RECV_COMPLETE 2

/* What a peer runs. */
typedef enum mx_host_type {
    MX_HOST_GM = 1,
    MX_HOST_XM = 2,
    MX_HOST_MX = 3,
    MX_HOST_MXvM = 4
} mx_host_type_t;

/* The raw endpoint of a board; a board has one. */
mx_return_t mx_raw_open_endpoint(uint32_t board_number, mx_param_t *params, uint32_t params_count,
                                 mx_raw_endpoint_t *endpoint);
mx_return_t mx_raw_close_endpoint(mx_raw_endpoint_t endpoint);
mx_endpt_handle_t mx_raw_handle(mx_raw_endpoint_t endpoint);

/* Sends a complete frame; an event tells when 'buffer' may be used again. */
mx_return_t mx_raw_send(mx_raw_endpoint_t endpoint, uint32_t port, void *route, uint32_t route_length, void *buffer,
                        uint32_t length, void *context);

/* The next event. '*length' says how much room there is, and then how long the frame is. */
mx_return_t mx_raw_next_event(mx_raw_endpoint_t endpoint, uint32_t *port, void **context, void *buffer,
                              uint32_t *length, uint32_t timeout_ms, mx_raw_status_t *status);

/* Peers. */
mx_return_t mx_raw_set_route_begin(mx_raw_endpoint_t endpoint);
mx_return_t mx_raw_set_route_end(mx_raw_endpoint_t endpoint);
mx_return_t mx_raw_set_route_mag(mx_raw_endpoint_t endpoint, uint64_t destination, void *route, uint32_t route_length,
                                 uint32_t input_port, uint32_t output_port, mx_host_type_t host_type, uint32_t mag_id);
mx_return_t mx_raw_set_route(mx_raw_endpoint_t endpoint, uint64_t destination, void *route, uint32_t route_length,
                             uint32_t input_port, uint32_t output_port, mx_host_type_t host_type);
mx_return_t mx_raw_clear_routes(mx_raw_endpoint_t endpoint, uint64_t destination, uint32_t port);
mx_return_t mx_raw_remove_peer(mx_raw_endpoint_t endpoint, uint64_t destination);
mx_return_t mx_raw_set_map_version(mx_raw_endpoint_t endpoint, uint32_t port, uint64_t mapper_id, uint32_t map_version,
                                   uint32_t nodes, uint32_t complete);
mx_return_t mx_raw_set_hostname(mx_raw_endpoint_t endpoint, char *hostname);
mx_return_t mx_raw_set_peer_name(mx_raw_endpoint_t endpoint, uint64_t nic_id, char *hostname);
mx_return_t mx_raw_set_nic_reply_info(mx_raw_endpoint_t endpoint, void *info, uint32_t length);

/* The board. */
mx_return_t mx_raw_num_ports(mx_raw_endpoint_t endpoint, uint32_t *ports);
mx_return_t mx_raw_line_speed(mx_raw_endpoint_t endpoint, mx_line_speed_t *speed);

#ifdef __cplusplus
}
#endif

#endif /* MX_RAW_H */
