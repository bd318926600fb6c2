//! Checks the exports of `libmyriexpress.so.0`, name by name, against the specification of the library (sections 1.1, 1.2 and 4).

use crate::build::{cc, library, package, run};
use isthmus_testbed::Scratch;
use std::collections::BTreeSet;
use std::process::Command;

/// Functions with a version (1.1).
const VERSIONED: [(&str, &str); 7] = [
    ("mx_open_endpoint", "MX_0.9"),
    ("mx_decompose_endpoint_addr", "MX_0.9"),
    ("mx_get_info", "MX_0.91"),
    ("mx_test", "MX_0.91"),
    ("mx_wait", "MX_0.91"),
    ("mx_iprobe", "MX_0.91"),
    ("mx__init_api", "MX_0.92"),
];

/// Version nodes, each with the node that it inherits (1.1).
const NODES: [(&str, &str); 4] = [("MX_0.0", ""), ("MX_0.9", ""), ("MX_0.91", "MX_0.9"), ("MX_0.92", "MX_0.91")];

/// Data (1.2).
const DATA: [&str; 2] = ["MX_ERRORS_ARE_FATAL", "MX_ERRORS_RETURN"];

/// Functions without a version: myriexpress.h (4.1), mx_extensions.h (4.2), internals (4.3), mx_raw.h (4.4).
const UNVERSIONED: &str = "
    mx_finalize mx_set_error_handler mx_close_endpoint mx_wakeup mx_disable_progression mx_reenable_progression
    mx_isend mx_issend mx_irecv mx_cancel mx_test_any mx_wait_any mx_ipeek mx_peek mx_probe mx_ibuffered mx_buffered
    mx_context mx_hostname_to_nic_id mx_board_number_to_nic_id mx_nic_id_to_board_number mx_nic_id_to_hostname
    mx_connect mx_get_endpoint_addr mx_strerror mx_strstatus mx_register_unexp_callback mx_iput mx_iget
    mx_iconnect mx_disconnect mx_register_unexp_handler mx_forget mx_progress mx_set_endpoint_addr_context
    mx_get_endpoint_addr_context mx_set_request_timeout mx_decompose_endpoint_addr2
    mx_open_board mx__get_mapper_state mx__regcache_clean
    mx_raw_handle mx_raw_open_endpoint mx_raw_close_endpoint mx_raw_send mx_raw_next_event mx_raw_set_route_begin
    mx_raw_set_route_end mx_raw_set_route_mag mx_raw_set_route mx_raw_clear_routes mx_raw_remove_peer
    mx_raw_set_map_version mx_raw_num_ports mx_raw_line_speed mx_raw_set_hostname mx_raw_set_peer_name
    mx_raw_set_nic_reply_info";

fn tool(program: &str, arguments: &[&str]) -> String {
    run(Command::new(program).args(arguments).arg(library().join("libmyriexpress.so.0")))
}

/// Returns the name, version, type and size of the library's exports, without version nodes.
fn exported() -> BTreeSet<(String, String, u64)> {
    let listing = tool("readelf", &["--wide", "--dyn-syms"]);
    // Num: Value Size Type Bind Vis Ndx Name
    let fields = listing.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let defined = fields
        .filter(|fields| fields.len() >= 8 && fields[0] != "Num:" && fields[0].ends_with(':') && fields[6] != "UND");
    let exported = defined.filter(|fields| fields[6] != "ABS");
    exported
        .map(|fields| {
            assert_eq!((fields[4], fields[5]), ("GLOBAL", "DEFAULT"), "{}", fields[7]);
            // The size of a function is not specified.
            let size = if fields[3] == "OBJECT" { fields[2].parse().unwrap() } else { 0 };
            (fields[7].to_owned(), fields[3].to_owned(), size)
        })
        .collect()
}

#[test]
fn exported_symbols_match_the_specification() {
    let function = |name: String| (name, "FUNC".to_owned(), 0);
    let mut expected: BTreeSet<_> = UNVERSIONED.split_whitespace().map(|name| function(name.to_owned())).collect();
    expected.extend(VERSIONED.map(|(name, version)| function(format!("{name}@@{version}"))));
    expected.extend(DATA.map(|name| (name.to_owned(), "OBJECT".to_owned(), 8)));
    let exported = exported();
    let missing: Vec<_> = expected.difference(&exported).collect();
    let extra: Vec<_> = exported.difference(&expected).collect();
    assert!(missing.is_empty() && extra.is_empty(), "missing: {missing:?}\nbeyond the specification: {extra:?}");
}

#[test]
fn versions_inherit_as_specified() {
    let listing = tool("readelf", &["--wide", "--version-info"]);
    let definitions = listing.split("Version definition").nth(1).unwrap().split("\n\n").next().unwrap();
    let mut found: Vec<(String, String)> = Vec::new();
    for line in definitions.lines() {
        if let Some((_, name)) = line.split_once(" Name: ") {
            found.push((name.trim().to_owned(), String::new()));
        } else if let Some((_, parent)) = line.split_once(" Parent 1: ") {
            found.last_mut().unwrap().1 = parent.trim().to_owned();
        }
    }
    assert_eq!(found.remove(0).0, "libmyriexpress.so.0", "the base is called like the library");
    assert_eq!(found, NODES.map(|(name, parent)| (name.to_owned(), parent.to_owned())));
}

#[test]
fn library_has_its_soname_links() {
    for link in ["libmyriexpress.so", "libopen-mx.so", "libopen-mx.so.0"] {
        let target = std::fs::read_link(library().join(link)).unwrap();
        assert_eq!(target.to_str(), Some("libmyriexpress.so.0"), "{link}");
    }
    assert!(library().join("libmyriexpress.a").is_file());
}

#[test]
fn the_library_needs_libc_only() {
    let headers = tool("objdump", &["-p"]);
    let needed = headers.lines().filter_map(|line| line.trim().strip_prefix("NEEDED")).map(str::trim);
    let allowed = ["libc.so.6", "libgcc_s.so.1", "ld-linux"];
    let foreign: Vec<_> = needed.filter(|name| !allowed.iter().any(|start| name.starts_with(start))).collect();
    assert!(foreign.is_empty(), "{foreign:?}");
}

#[test]
fn loading_the_library_has_no_side_effects() {
    let mut cat = Command::new("/bin/cat");
    let status = run(cat.arg("/proc/self/status").env("LD_PRELOAD", library().join("libmyriexpress.so.0")));
    let field =
        |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim().to_owned();
    assert_eq!(field("Threads:"), "1");
    assert_eq!(u64::from_str_radix(&field("SigCgt:"), 16), Ok(0));
}

/// Compiles a program that uses the data like old programs, by copy relocations, and that calls functions without a
/// daemon.
#[test]
fn programs_link_with_the_shared_and_the_static_library() {
    let scratch = Scratch::new().unwrap();
    let source = package().join("tests/c/alone.c");
    let shared = scratch.join("shared");
    let mut link = cc("c");
    link.args(["-std=gnu11", "-fno-pie", "-no-pie", "-o"]).arg(&shared).arg(&source);
    run(link.arg("-L").arg(library()).arg("-lmyriexpress"));
    assert_eq!(run(Command::new(&shared).env("LD_LIBRARY_PATH", library())), "alone\n");
    let alone = scratch.join("static");
    let mut link = cc("c");
    link.args(["-std=gnu11", "-o"]).arg(&alone).arg(&source);
    run(link.args(["-x", "none"]).arg(library().join("libmyriexpress.a")).args(["-lpthread", "-ldl", "-lm"]));
    assert_eq!(run(&mut Command::new(&alone)), "alone\n");
}
