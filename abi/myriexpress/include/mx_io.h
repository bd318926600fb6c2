/*
 * MX: what is known of a board below its endpoints.
 */
#ifndef MX_IO_H
#define MX_IO_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* An open board. */
typedef int mx_endpt_handle_t;
#define MX__INVALID_HANDLE (-1)

/* What the mapper of a network has told a board. */
typedef struct {
    uint32_t board_number; /* asked about */
    uint8_t mapper_mac[6];
    uint16_t iport; /* asked about */
    uint32_t map_version;
    uint32_t num_hosts;
    uint32_t network_configured;
    uint32_t routes_valid;
    uint32_t level;
    uint32_t flags;
} mx_mapper_state_t;

/* Why a board died. Macros, because programs ask the preprocessor for them. */
#define MX_DEAD_RECOVERABLE_SRAM_PARITY_ERROR 10
#define MX_DEAD_SRAM_PARITY_ERROR 11
#define MX_DEAD_WATCHDOG_TIMEOUT 12
#define MX_DEAD_COMMAND_TIMEOUT 13
#define MX_DEAD_ENDPOINT_CLOSE_TIMEOUT 14
#define MX_DEAD_ROUTE_UPDATE_TIMEOUT 15
#define MX_DEAD_PCI_PARITY_ERROR 16
#define MX_DEAD_PCI_MASTER_ABORT 17

#ifdef __cplusplus
}
#endif

#endif /* MX_IO_H */
