/*
 * MX: opening a board below its endpoints. For middleware that asks for the mapper's state.
 */
#ifndef MX__FOPS_H
#define MX__FOPS_H

#include "../mx_io.h"
#include "../myriexpress.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A handle for mx__get_mapper_state(). Errors are returned without a call of the error handler. */
mx_return_t mx_open_board(int board_number, mx_endpt_handle_t *handle);

#ifdef __cplusplus
}
#endif

#endif /* MX__FOPS_H */
