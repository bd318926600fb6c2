/* Every function of the headers, with the arguments that are specified for it: what does not fit does not compile. */
#include "mx_extensions.h"
#include "mx_io.h"
#include "mx_raw.h"
#include "mx_internals/mx__fops.h"
#include "mx_internals/mx__driver_interface.h"
#include "myriexpress.h"

typedef mx_endpoint_t ep;
typedef mx_endpoint_addr_t addr;
typedef mx_return_t ret;
typedef mx_raw_endpoint_t raw;
typedef uint32_t u32;
typedef uint64_t u64;

struct all {
    ret (*init_api)(int);
    ret (*finalize)(void);
    mx_error_handler_t (*set_error_handler)(mx_error_handler_t);
    ret (*open_endpoint)(u32, u32, u32, mx_param_t *, u32, ep *);
    ret (*one[4])(ep);
    ret (*sends[2])(ep, mx_segment_t *, u32, addr, u64, void *, mx_request_t *);
    ret (*irecv)(ep, mx_segment_t *, u32, u64, u64, void *, mx_request_t *);
    ret (*cancel)(ep, mx_request_t *, u32 *);
    ret (*test)(ep, mx_request_t *, mx_status_t *, u32 *);
    ret (*wait)(ep, mx_request_t *, u32, mx_status_t *, u32 *);
    ret (*test_any[2])(ep, u64, u64, mx_status_t *, u32 *);
    ret (*wait_any[2])(ep, u32, u64, u64, mx_status_t *, u32 *);
    ret (*ipeek[2])(ep, mx_request_t *, u32 *);
    ret (*peek)(ep, u32, mx_request_t *, u32 *);
    ret (*buffered)(ep, mx_request_t *, u32, u32 *);
    ret (*context)(mx_request_t *, void **);
    ret (*get_info)(ep, mx_get_info_key_t, void *, u32, void *, u32);
    ret (*hostname_to_nic_id)(char *, u64 *);
    ret (*board_number_to_nic_id)(u32, u64 *);
    ret (*nic_id_to_board_number)(u64, u32 *);
    ret (*nic_id_to_hostname)(u64, char *);
    ret (*connect)(ep, u64, u32, u32, u32, addr *);
    ret (*decompose_endpoint_addr)(addr, u64 *, u32 *);
    ret (*get_endpoint_addr)(ep, addr *);
    const char *(*strerror)(mx_return_t);
    const char *(*strstatus)(mx_status_code_t);
    ret (*register_unexp_callback)(ep, mx_matching_callback_t, void *);
    ret (*put_get[2])(ep, void *, u32, addr, u64, void *, mx_request_t *);
    ret (*iconnect)(ep, u64, u32, u32, u64, void *, mx_request_t *);
    ret (*disconnect)(ep, addr);
    ret (*register_unexp_handler)(ep, mx_unexp_handler_t, void *);
    ret (*forget)(ep, mx_request_t *);
    ret (*progress)(ep);
    ret (*set_endpoint_addr_context)(addr, void *);
    ret (*get_endpoint_addr_context)(addr, void **);
    ret (*set_request_timeout)(ep, mx_request_t, u32);
    ret (*decompose_endpoint_addr2)(addr, u64 *, u32 *, u32 *);
    ret (*open_board)(int, mx_endpt_handle_t *);
    ret (*get_mapper_state)(mx_endpt_handle_t, mx_mapper_state_t *);
    mx_endpt_handle_t (*raw_handle)(raw);
    ret (*raw_open_endpoint)(u32, mx_param_t *, u32, raw *);
    ret (*raw_one[3])(raw);
    ret (*raw_send)(raw, u32, void *, u32, void *, u32, void *);
    ret (*raw_next_event)(raw, u32 *, void **, void *, u32 *, u32, mx_raw_status_t *);
    ret (*raw_set_route_mag)(raw, u64, void *, u32, u32, u32, mx_host_type_t, u32);
    ret (*raw_set_route)(raw, u64, void *, u32, u32, u32, mx_host_type_t);
    ret (*raw_clear_routes)(raw, u64, u32);
    ret (*raw_remove_peer)(raw, u64);
    ret (*raw_set_map_version)(raw, u32, u64, u32, u32, u32);
    ret (*raw_num_ports)(raw, u32 *);
    ret (*raw_line_speed)(raw, mx_line_speed_t *);
    ret (*raw_set_hostname)(raw, char *);
    ret (*raw_set_peer_name)(raw, u64, char *);
    ret (*raw_set_nic_reply_info)(raw, void *, u32);
};

extern struct all all;
struct all all = {
    mx__init_api,
    mx_finalize,
    mx_set_error_handler,
    mx_open_endpoint,
    {mx_close_endpoint, mx_wakeup, mx_disable_progression, mx_reenable_progression},
    {mx_isend, mx_issend},
    mx_irecv,
    mx_cancel,
    mx_test,
    mx_wait,
    {mx_test_any, mx_iprobe},
    {mx_wait_any, mx_probe},
    {mx_ipeek, mx_ibuffered},
    mx_peek,
    mx_buffered,
    mx_context,
    mx_get_info,
    mx_hostname_to_nic_id,
    mx_board_number_to_nic_id,
    mx_nic_id_to_board_number,
    mx_nic_id_to_hostname,
    mx_connect,
    mx_decompose_endpoint_addr,
    mx_get_endpoint_addr,
    mx_strerror,
    mx_strstatus,
    mx_register_unexp_callback,
    {mx_iput, mx_iget},
    mx_iconnect,
    mx_disconnect,
    mx_register_unexp_handler,
    mx_forget,
    mx_progress,
    mx_set_endpoint_addr_context,
    mx_get_endpoint_addr_context,
    mx_set_request_timeout,
    mx_decompose_endpoint_addr2,
    mx_open_board,
    mx__get_mapper_state,
    mx_raw_handle,
    mx_raw_open_endpoint,
    {mx_raw_close_endpoint, mx_raw_set_route_begin, mx_raw_set_route_end},
    mx_raw_send,
    mx_raw_next_event,
    mx_raw_set_route_mag,
    mx_raw_set_route,
    mx_raw_clear_routes,
    mx_raw_remove_peer,
    mx_raw_set_map_version,
    mx_raw_num_ports,
    mx_raw_line_speed,
    mx_raw_set_hostname,
    mx_raw_set_peer_name,
    mx_raw_set_nic_reply_info,
};
