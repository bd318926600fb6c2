//! Compares sizes, offsets and values in the headers, as compilers compute them, with the specification (sections 2, 3
//! and 10) and with the Rust types.

use crate::build::{cc, run};
use isthmus_myriexpress::{MapperState, MxEndpointAddr, MxStatus, Parameter, Return, Segment};
use isthmus_testbed::Scratch;
use std::fmt::Write;
use std::mem::offset_of;
use std::process::Command;

/// Types (2): size and alignment.
const TYPES: [(&str, u64, u64); 23] = [
    ("mx_endpoint_t", 8, 8),
    ("mx_request_t", 8, 8),
    ("mx_raw_endpoint_t", 8, 8),
    ("mx_endpoint_addr_t", 16, 8),
    ("mx_segment_t", 16, 8),
    ("mx_param_t", 16, 8),
    ("mx_status_t", 48, 8),
    ("mx_mapper_state_t", 36, 4),
    ("mx_endpt_handle_t", 4, 4),
    ("mx_raw_status_t", 4, 4),
    ("mx_return_t", 4, 4),
    ("mx_status_code_t", 4, 4),
    ("mx_param_key_t", 4, 4),
    ("mx_get_info_key_t", 4, 4),
    ("mx_line_speed_t", 4, 4),
    ("mx_net_type_t", 4, 4),
    ("mx_unexp_handler_action_t", 4, 4),
    ("mx_host_type_t", 4, 4),
    ("mx_error_handler_t", 8, 8),
    ("mx_unexp_handler_t", 8, 8),
    ("mx_matching_callback_t", 8, 8),
    ("MX_ERRORS_ARE_FATAL", 8, 8),
    ("MX_ERRORS_RETURN", 8, 8),
];

/// Fields (2): offset and width.
const FIELDS: [(&str, &str, u64, u64); 25] = [
    ("mx_segment_t", "segment_ptr", 0, 8),
    ("mx_segment_t", "segment_length", 8, 4),
    ("mx_param_t", "key", 0, 4),
    ("mx_param_t", "val", 8, 8),
    ("mx_param_t", "val.error_handler", 8, 8),
    ("mx_param_t", "val.unexp_queue_max", 8, 4),
    ("mx_param_t", "val.context_id", 8, 2),
    ("mx_param_t", "val.context_id.bits", 8, 1),
    ("mx_param_t", "val.context_id.shift", 9, 1),
    ("mx_status_t", "code", 0, 4),
    ("mx_status_t", "source", 8, 16),
    ("mx_status_t", "match_info", 24, 8),
    ("mx_status_t", "msg_length", 32, 4),
    ("mx_status_t", "xfer_length", 36, 4),
    ("mx_status_t", "context", 40, 8),
    ("mx_mapper_state_t", "board_number", 0, 4),
    ("mx_mapper_state_t", "mapper_mac", 4, 6),
    ("mx_mapper_state_t", "iport", 10, 2),
    ("mx_mapper_state_t", "map_version", 12, 4),
    ("mx_mapper_state_t", "num_hosts", 16, 4),
    ("mx_mapper_state_t", "network_configured", 20, 4),
    ("mx_mapper_state_t", "routes_valid", 24, 4),
    ("mx_mapper_state_t", "level", 28, 4),
    ("mx_mapper_state_t", "flags", 32, 4),
    ("mx_endpoint_addr_t", "stuff", 0, 16),
];

/// Constants (3, 10).
const CONSTANTS: [(&str, u64); 15] = [
    ("MX_API", 0x301),
    ("MX_INFINITE", 0),
    ("MX_ANY_NIC", 0xffff_ffff),
    ("MX_ANY_ENDPOINT", 0xffff_ffff),
    ("MX_MATCH_MASK_NONE", 0xffff_ffff_ffff_ffff),
    ("MX_MAX_SEGMENTS", 256),
    ("MX_MAX_STR_LEN", 128),
    ("MX_MAX_HOSTNAME_LEN", 80),
    ("MX_SIZEOF_ADDR", 16),
    ("MX_CONTEXT_ID_BITS_MAX", 16),
    ("MX_HAS_ICONNECT_V2", 1),
    ("MX_RAW_POLL_SUPPORTED", 1),
    ("MX__INVALID_HANDLE", u64::MAX),
    ("MX_U32(0x123456789abcdef0)", 0x1234_5678),
    ("MX_L32(0x123456789abcdef0)", 0x9abc_def0),
];

/// Enumerations without gaps, each from its first number (3, 10).
const ENUMERATIONS: [(u64, &str); 10] = [
    (
        0,
        "MX_SUCCESS MX_BAD_BAD_BAD MX_FAILURE MX_ALREADY_INITIALIZED MX_NOT_INITIALIZED MX_NO_DEV MX_NO_DRIVER \
         MX_NO_PERM MX_BOARD_UNKNOWN MX_BAD_ENDPOINT MX_BAD_SEG_LIST MX_BAD_SEG_MEM MX_BAD_SEG_CNT MX_BAD_REQUEST \
         MX_BAD_MATCH_MASK MX_NO_RESOURCES MX_BAD_ADDR_LIST MX_BAD_ADDR_COUNT MX_BAD_ROOT MX_NOT_COMPLETED MX_BUSY \
         MX_BAD_INFO_KEY MX_BAD_INFO_VAL MX_BAD_NIC MX_BAD_PARAM_LIST MX_BAD_PARAM_NAME MX_BAD_PARAM_VAL \
         MX_BAD_HOSTNAME_ARGS MX_HOST_NOT_FOUND MX_REQUEST_PENDING MX_TIMEOUT MX_NO_MATCH MX_BAD_ENDPOINT_ID \
         MX_CONNECTION_FAILED MX_BAD_CONNECTION_KEY MX_BAD_INFO_LENGTH MX_NIC_NOT_FOUND MX_BAD_KERNEL_VERSION \
         MX_BAD_LIB_VERSION MX_NIC_DEAD MX_CANCEL_NOT_SUPPORTED MX_CLOSE_IN_HANDLER \
         MX_BAD_MATCHING_FOR_CONTEXT_ID_MASK MX_NOT_SUPPORTED_WITH_CONTEXT_ID",
    ),
    (
        0,
        "MX_STATUS_SUCCESS MX_STATUS_PENDING MX_STATUS_BUFFERED MX_STATUS_REJECTED MX_STATUS_TIMEOUT \
         MX_STATUS_TRUNCATED MX_STATUS_CANCELLED MX_STATUS_ENDPOINT_UNKNOWN MX_STATUS_ENDPOINT_CLOSED \
         MX_STATUS_ENDPOINT_UNREACHABLE MX_STATUS_BAD_SESSION MX_STATUS_BAD_KEY MX_STATUS_BAD_ENDPOINT \
         MX_STATUS_BAD_RDMAWIN MX_STATUS_ABORTED MX_STATUS_EVENTQ_FULL MX_STATUS_NO_RESOURCES",
    ),
    (0, "MX_PARAM_ERROR_HANDLER MX_PARAM_UNEXP_QUEUE_MAX MX_PARAM_CONTEXT_ID"),
    (0, "MX_SPEED_2G MX_SPEED_10G MX_SPEED_OPEN_MX"),
    (0, "MX_NET_MYRI MX_NET_ETHER"),
    (0, "MX_RECV_CONTINUE MX_RECV_FINISHED"),
    (0, "MX_RAW_NO_EVENT MX_RAW_SEND_COMPLETE MX_RAW_RECV_COMPLETE"),
    (1, "MX_HOST_GM MX_HOST_XM MX_HOST_MX MX_HOST_MXvM"),
    (
        1,
        "MX_NIC_COUNT MX_NIC_IDS MX_MAX_NATIVE_ENDPOINTS MX_NATIVE_REQUESTS MX_COUNTERS_COUNT MX_COUNTERS_LABELS \
         MX_COUNTERS_VALUES MX_PRODUCT_CODE MX_PART_NUMBER MX_SERIAL_NUMBER MX_PORT_COUNT MX_PIO_SEND_MAX \
         MX_COPY_SEND_MAX MX_NUMA_NODE MX_NET_TYPE MX_LINE_SPEED",
    ),
    (
        10,
        "MX_DEAD_RECOVERABLE_SRAM_PARITY_ERROR MX_DEAD_SRAM_PARITY_ERROR MX_DEAD_WATCHDOG_TIMEOUT \
         MX_DEAD_COMMAND_TIMEOUT MX_DEAD_ENDPOINT_CLOSE_TIMEOUT MX_DEAD_ROUTE_UPDATE_TIMEOUT \
         MX_DEAD_PCI_PARITY_ERROR MX_DEAD_PCI_MASTER_ABORT",
    ),
];

/// Expressions with their required values.
fn facts() -> Vec<(String, u64)> {
    let sizes = TYPES.iter().map(|(name, size, _)| (format!("sizeof({name})"), *size));
    let alignments = TYPES.iter().map(|(name, _, align)| (format!("__alignof__({name})"), *align));
    let offsets = FIELDS.iter().map(|(name, field, offset, _)| (format!("offsetof({name}, {field})"), *offset));
    let widths = FIELDS.iter().map(|(name, field, _, width)| (format!("sizeof((({name} *)0)->{field})"), *width));
    let constants = CONSTANTS.iter().map(|(name, value)| ((*name).to_owned(), *value));
    let enumerators = ENUMERATIONS.iter().flat_map(|(first, names)| {
        names.split_whitespace().zip(*first..).map(|(name, value)| (name.to_owned(), value))
    });
    sizes.chain(alignments).chain(offsets).chain(widths).chain(constants).chain(enumerators).collect()
}

#[test]
fn c_layout_matches_the_specification() {
    let scratch = Scratch::new().unwrap();
    let mut program = "#include <mx_extensions.h>\n#include <mx_raw.h>\n\
                       #include <mx_internals/mx__driver_interface.h>\n#include <stdio.h>\n\nint main(void)\n{\n"
        .to_owned();
    let facts = facts();
    for (expression, _) in &facts {
        writeln!(program, "    printf(\"%llu\\n\", (unsigned long long)({expression}));").unwrap();
    }
    program.push_str("    return 0;\n}\n");
    let source = scratch.write("facts.c", program).unwrap();
    for (language, standard) in [("c", "gnu11"), ("c++", "gnu++17")] {
        let object = scratch.join("facts.o");
        run(cc(language).args([&format!("-std={standard}"), "-c", "-o"]).arg(&object).arg(&source));
        let binary = scratch.join("facts");
        run(Command::new("cc").arg("-o").arg(&binary).arg(&object));
        let printed = run(&mut Command::new(&binary));
        let seen: Vec<u64> = printed.lines().map(|line| line.parse().unwrap()).collect();
        assert_eq!(seen.len(), facts.len());
        for ((expression, expected), seen) in facts.iter().zip(seen) {
            assert_eq!(seen, *expected, "{language}: {expression}");
        }
    }
}

#[test]
fn rust_layout_matches_the_specification() {
    let of = |name: &str| TYPES.iter().find(|(known, ..)| *known == name).map(|(_, size, align)| (*size, *align));
    let ours = [
        ("mx_endpoint_addr_t", size_of::<MxEndpointAddr>(), align_of::<MxEndpointAddr>()),
        ("mx_segment_t", size_of::<Segment>(), align_of::<Segment>()),
        ("mx_param_t", size_of::<Parameter>(), align_of::<Parameter>()),
        ("mx_status_t", size_of::<MxStatus>(), align_of::<MxStatus>()),
        ("mx_mapper_state_t", size_of::<MapperState>(), align_of::<MapperState>()),
        ("mx_return_t", size_of::<Return>(), align_of::<Return>()),
    ];
    for (name, size, align) in ours {
        assert_eq!(of(name), Some((size as u64, align as u64)), "{name}");
    }
    let ours = [
        ("segment_ptr", offset_of!(Segment, segment_ptr)),
        ("segment_length", offset_of!(Segment, segment_length)),
        ("val", offset_of!(Parameter, val)),
        ("code", offset_of!(MxStatus, code)),
        ("source", offset_of!(MxStatus, source)),
        ("match_info", offset_of!(MxStatus, match_info)),
        ("msg_length", offset_of!(MxStatus, msg_length)),
        ("xfer_length", offset_of!(MxStatus, xfer_length)),
        ("context", offset_of!(MxStatus, context)),
        ("board_number", offset_of!(MapperState, board_number)),
        ("mapper_mac", offset_of!(MapperState, mapper_mac)),
        ("iport", offset_of!(MapperState, iport)),
        ("map_version", offset_of!(MapperState, map_version)),
        ("num_hosts", offset_of!(MapperState, num_hosts)),
        ("network_configured", offset_of!(MapperState, network_configured)),
        ("routes_valid", offset_of!(MapperState, routes_valid)),
        ("level", offset_of!(MapperState, level)),
        ("flags", offset_of!(MapperState, flags)),
    ];
    for (name, offset) in ours {
        let specified = FIELDS.iter().find(|(_, field, ..)| *field == name).map(|(_, _, offset, _)| *offset);
        assert_eq!(specified, Some(offset as u64), "{name}");
    }
}
