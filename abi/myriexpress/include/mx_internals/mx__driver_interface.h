/*
 * MX: the state of the network as a board knows it. For middleware that tells networks apart by their mapper.
 */
#ifndef MX__DRIVER_INTERFACE_H
#define MX__DRIVER_INTERFACE_H

#include "../mx_io.h"
#include "mx__fops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Fills 'state' for the board and port named in it. Errors are returned without a call of the error handler. */
mx_return_t mx__get_mapper_state(mx_endpt_handle_t handle, mx_mapper_state_t *state);

#ifdef __cplusplus
}
#endif

#endif /* MX__DRIVER_INTERFACE_H */
