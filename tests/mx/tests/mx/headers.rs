//! The headers as programs of their time include them: in C89 and later, in C++, alone and together, without a warning.

use std::process::Command;

use isthmus_testbed::Scratch;

use crate::build::{headers, library};
use isthmus_testbed::run_tool;

/// Languages, with the compiler and its options.
const LANGUAGES: [(&str, &[&str], &str); 6] = [
    ("cc", &["-std=c89", "-Wno-long-long"], "c"),
    ("cc", &["-std=gnu89"], "c"),
    ("cc", &["-std=c99"], "c"),
    ("cc", &["-std=c17"], "c"),
    ("c++", &["-std=c++98", "-Wno-long-long"], "cc"),
    ("c++", &["-std=c++17"], "cc"),
];

const STRICT: [&str; 6] = ["-Wall", "-Wextra", "-pedantic", "-Werror", "-Wstrict-aliasing", "-Wundef"];

/// Each header alone, all together, and in the order in which Open MPI includes them.
const INCLUDES: [&[&str]; 8] = [
    &["myriexpress.h"],
    &["mx_extensions.h"],
    &["mx_raw.h"],
    &["mx_io.h"],
    &["mx_extensions.h", "mx_io.h", "mx_internals/mx__fops.h"],
    &["mx_internals/mx__driver_interface.h"],
    &["myriexpress.h", "mx_extensions.h", "mx_internals/mx__fops.h", "mx_internals/mx__driver_interface.h"],
    &["mx_raw.h", "mx_internals/mx__driver_interface.h", "mx_io.h", "mx_extensions.h", "myriexpress.h"],
];

#[test]
fn headers_compile_in_every_language_without_a_warning() {
    let scratch = Scratch::new().unwrap();
    for (compiler, options, suffix) in LANGUAGES {
        for (at, includes) in INCLUDES.iter().enumerate() {
            let lines = includes.iter().chain(includes.iter()).map(|header| format!("#include \"{header}\"\n"));
            let text = lines.collect::<String>() + "int main(void) { return 0; }\n";
            let source = scratch.write(format!("include{at}.{suffix}"), text).unwrap();
            let mut command = Command::new(compiler);
            command.args(options).args(STRICT).arg("-I").arg(headers()).arg("-fsyntax-only").arg(source);
            run_tool(&mut command);
        }
    }
}

/// A program as users of MX wrote them, in what C89 and C++98 have in common: each function called, each type used.
const PROGRAM: &str = r#"
#include "myriexpress.h"
#include "mx_extensions.h"
#include "mx_io.h"
#include "mx_internals/mx__fops.h"
#include "mx_internals/mx__driver_interface.h"

static mx_return_t handler(char *message, mx_return_t code)
{
    return message ? code : MX_FAILURE;
}

static mx_unexp_handler_action_t unexpected(void *context, mx_endpoint_addr_t source, uint64_t match, uint32_t length,
                                            void *data)
{
    (void)context; (void)source; (void)match; (void)length;
    return data ? MX_RECV_FINISHED : MX_RECV_CONTINUE;
}

static int use(mx_endpoint_t endpoint, mx_endpoint_addr_t address)
{
    mx_segment_t segments[MX_MAX_SEGMENTS];
    mx_request_t request;
    mx_status_t status;
    mx_param_t param;
    mx_mapper_state_t state;
    mx_endpt_handle_t handle = MX__INVALID_HANDLE;
    char name[MX_MAX_HOSTNAME_LEN];
    uint64_t nic_id = 0;
    uint32_t result = MX_ANY_NIC, session;
    void *context;

    param.key = MX_PARAM_CONTEXT_ID;
    param.val.context_id.bits = 1;
    param.val.context_id.shift = 63;
    param.key = MX_PARAM_ERROR_HANDLER;
    param.val.error_handler = handler;
    param.key = MX_PARAM_UNEXP_QUEUE_MAX;
    param.val.unexp_queue_max = 1;
    segments[0].segment_ptr = name;
    segments[0].segment_length = sizeof name;
    state.board_number = 0;
    state.iport = 0;
    return mx_open_endpoint(MX_ANY_NIC, MX_ANY_ENDPOINT, 0, &param, 1, &endpoint)
        + mx_isend(endpoint, segments, 1, address, MX_MATCH_MASK_NONE, 0, &request)
        + mx_issend(endpoint, segments, 1, address, 0, 0, &request)
        + mx_irecv(endpoint, segments, 1, 0, MX_MATCH_MASK_NONE, 0, &request)
        + mx_test(endpoint, &request, &status, &result) + mx_wait(endpoint, &request, MX_INFINITE, &status, &result)
        + mx_test_any(endpoint, 0, 0, &status, &result) + mx_wait_any(endpoint, 1, 0, 0, &status, &result)
        + mx_ipeek(endpoint, &request, &result) + mx_peek(endpoint, 1, &request, &result)
        + mx_iprobe(endpoint, 0, 0, &status, &result) + mx_probe(endpoint, 1, 0, 0, &status, &result)
        + mx_cancel(endpoint, &request, &result) + mx_ibuffered(endpoint, &request, &result)
        + mx_buffered(endpoint, &request, 1, &result) + mx_context(&request, &context)
        + mx_get_info(endpoint, MX_NIC_COUNT, 0, 0, &result, sizeof result)
        + mx_hostname_to_nic_id(name, &nic_id) + mx_board_number_to_nic_id(0, &nic_id)
        + mx_nic_id_to_board_number(nic_id, &result) + mx_nic_id_to_hostname(nic_id, name)
        + mx_connect(endpoint, nic_id, 0, 0, 1, &address) + mx_get_endpoint_addr(endpoint, &address)
        + mx_iconnect(endpoint, nic_id, 0, 0, 0, 0, &request) + mx_disconnect(endpoint, address)
        + mx_decompose_endpoint_addr(address, &nic_id, &result)
        + mx_decompose_endpoint_addr2(address, &nic_id, &result, &session)
        + mx_register_unexp_handler(endpoint, unexpected, 0) + mx_forget(endpoint, &request) + mx_progress(endpoint)
        + mx_set_endpoint_addr_context(address, 0) + mx_get_endpoint_addr_context(address, &context)
        + mx_set_request_timeout(endpoint, request, 1) + mx_wakeup(endpoint)
        + mx_disable_progression(endpoint) + mx_reenable_progression(endpoint) + mx_close_endpoint(endpoint)
        + mx_open_board(0, &handle) + mx__get_mapper_state(handle, &state)
        + (int)status.code + (int)status.source.stuff[0] + (int)status.match_info + (int)status.msg_length
        + (int)status.xfer_length + (status.context != 0) + (int)MX_U32(nic_id) + (int)MX_L32(nic_id)
        + (mx_strerror(MX_SUCCESS) != 0) + (mx_strstatus(MX_STATUS_SUCCESS) != 0) + mx_finalize();
}

int main(int argc, char **argv)
{
    mx_endpoint_t endpoint = 0;
    mx_endpoint_addr_t address;
    (void)argv;
    address.stuff[0] = address.stuff[1] = 0;
#if MX_API < 0x301
#error "an old interface"
#endif
#ifndef MX_HAS_NET_TYPE
#error "no types of network"
#endif
    mx_set_error_handler(MX_ERRORS_RETURN);
    mx_set_error_handler(MX_ERRORS_ARE_FATAL);
    if (argc > 1)
        return use(endpoint, address);
    return mx_init() == MX_SUCCESS ? 0 : 1;
}
"#;

#[test]
fn old_program_compiles_and_links_in_every_language() {
    let scratch = Scratch::new().unwrap();
    for (compiler, options, suffix) in LANGUAGES {
        let source = scratch.write(format!("program.{suffix}"), PROGRAM).unwrap();
        let mut command = Command::new(compiler);
        command.args(options).args(STRICT).arg("-Wno-maybe-uninitialized").arg("-I").arg(headers()).arg("-o");
        command.arg(scratch.join("program")).arg(source).arg("-L").arg(library()).arg("-lmyriexpress");
        run_tool(&mut command);
    }
}

/// A program that includes `myriexpress.h` and nothing else, with the names that programs of Open-MX expect from it: the macros of
/// `inttypes.h`, the type of a segment's pointer, and the tag of a status.
const ONE_INCLUDE: &str = r#"
#include "myriexpress.h"

#if !defined(PRIx64) || !defined(SCNu32) || !defined(UINT32_MAX)
#error "no inttypes.h"
#endif

static uint32_t moved(const struct mx_status *status)
{
    return status->xfer_length;
}

int main(void)
{
    static char bytes[8];
    mx_segment_t segment;
    mx_segment_ptr_t start = bytes;
    mx_status_t status;
    struct mx_status *same = &status;
    const char *formats[2];
    size_t length = sizeof bytes;
    formats[0] = "%" PRIx64;
    formats[1] = "%" SCNu32;
    segment.segment_ptr = start;
    segment.segment_length = (uint32_t)length;
    status.xfer_length = segment.segment_length;
    return formats[0] != NULL && formats[1] != NULL && moved(same) == sizeof bytes ? 0 : 1;
}
"#;

/// Programs that ask the preprocessor for a code before they use it.
const RAW_MACROS: &str = r#"
#include "mx_raw.h"

#if !defined(MX_RAW_NO_EVENT) || MX_RAW_SEND_COMPLETE != 1 || MX_RAW_RECV_COMPLETE != 2
#error "no events"
#endif
#if MX_DEAD_RECOVERABLE_SRAM_PARITY_ERROR != 10 || MX_DEAD_SRAM_PARITY_ERROR != 11 || MX_DEAD_WATCHDOG_TIMEOUT != 12
#error "no causes"
#endif
#if MX_DEAD_COMMAND_TIMEOUT != 13 || MX_DEAD_ENDPOINT_CLOSE_TIMEOUT != 14 || MX_DEAD_ROUTE_UPDATE_TIMEOUT != 15
#error "no causes"
#endif
#if MX_DEAD_PCI_PARITY_ERROR != 16 || MX_DEAD_PCI_MASTER_ABORT != 17
#error "no causes"
#endif

int main(void)
{
    mx_raw_status_t event = MX_RAW_NO_EVENT;
    return event;
}
"#;

#[test]
fn program_needs_no_other_include_than_the_header() {
    let scratch = Scratch::new().unwrap();
    for (compiler, options, suffix) in LANGUAGES {
        for text in [ONE_INCLUDE, RAW_MACROS] {
            let source = scratch.write(format!("alone.{suffix}"), text).unwrap();
            let mut command = Command::new(compiler);
            command.args(options).args(STRICT).arg("-I").arg(headers()).arg("-fsyntax-only").arg(source);
            run_tool(&mut command);
        }
    }
}

/// Compiles the probes of the `configure` scripts of Open MPI, MPICH and hwloc: is the function there, whatever its type?
#[test]
fn configure_script_probes_succeed() {
    let scratch = Scratch::new().unwrap();
    let functions = [
        "mx_finalize",
        "mx_get_info",
        "mx_forget",
        "mx_register_unexp_handler",
        "mx_open_board",
        "mx__get_mapper_state",
    ];
    for function in functions {
        let text = format!("char {function}(); int main(void) {{ return {function}(); }}\n");
        let source = scratch.write("probe.c", text).unwrap();
        let mut cc = Command::new("cc");
        cc.arg("-w").arg("-o").arg(scratch.join("probe")).arg(source);
        run_tool(cc.arg("-L").arg(library()).arg("-lmyriexpress"));
    }
    let text = "#include <mx_extensions.h>\n#include <mx_io.h>\n#include <mx_internals/mx__fops.h>\n\
                #include <mx_internals/mx__driver_interface.h>\n\
                int main(void) { return mx_open_board(0, NULL) + mx__get_mapper_state(0, NULL) + MX_NUMA_NODE; }\n";
    let source = scratch.write("probe.c", text).unwrap();
    let mut cc = Command::new("cc");
    cc.arg("-Werror").arg("-I").arg(headers()).arg("-o").arg(scratch.join("probe")).arg(source);
    run_tool(cc.arg("-L").arg(library()).arg("-lmyriexpress"));
}
