//! The private functions of the libibverbs that is installed.

use super::*;
use crate::abi::consts::DRIVER_UNKNOWN;
use crate::abi::context::VerbsContext;
use crate::abi::device::VerbsDevice;
use crate::abi::objects::ContextObject;
use crate::abi::operations::VerbsContextOps34;
use std::os::fd::IntoRawFd;

/// Opens libibverbs. None if it is not installed, or if it has another private ABI.
fn installed() -> Option<Library> {
    // SAFETY: the constructors of libibverbs have no requirement.
    let handle = unsafe { libc::dlopen(c"libibverbs.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    let library = (!handle.is_null()).then(Library::find).flatten();
    if library.is_none() {
        eprintln!("skipped: there is no libibverbs.so.1 with private ABI 34");
    }
    library
}

/// A number for each operation, in place of its function.
const fn marker(at: usize) -> usize {
    0x1000 + 16 * at
}

/// The table in which each operation is its marker.
fn marked_table() -> VerbsContextOps34 {
    let markers: [usize; 76] = std::array::from_fn(marker);
    // SAFETY: both have the same size, and a function pointer may be any number but 0. None is called.
    unsafe { std::mem::transmute::<[usize; 76], VerbsContextOps34>(markers) }
}

#[test]
fn set_ops_puts_each_operation_where_the_context_has_it() {
    let Some(library) = installed() else { return };
    // SAFETY: zeroes are a valid device. It is never released: it has one reference more than the context.
    let device: &'static mut VerbsDevice = Box::leak(Box::new(unsafe { std::mem::zeroed() }));
    device.refcount = 1;
    let fd = std::fs::File::open("/dev/null").unwrap().into_raw_fd();
    // SAFETY: the device is as libibverbs has it, and the descriptor is the context's from here on.
    let object = unsafe { library.alloc_context::<ContextObject<u8>>(&raw mut device.device, fd, DRIVER_UNKNOWN) };
    assert!(!object.is_null());
    // SAFETY: the object was allocated, and zeroes are valid.
    let context = unsafe { (*object).verbs.get() };
    // SAFETY: the context is live. It keeps the table's numbers, and nothing calls them.
    unsafe { library.set_ops(context, &marked_table()) };
    // SAFETY: as above.
    let verbs = unsafe { &*context };
    assert_eq!((verbs.sz, verbs.context.cmd_fd), (size_of::<VerbsContext>(), fd));
    assert_eq!(verbs.context.abi_compat as usize, usize::MAX);
    // SAFETY: the object is live.
    let found = unsafe { ContextObject::<u8>::of(&raw const (*context).context) };
    assert!(std::ptr::eq(found.unwrap(), object));
    // SAFETY: null is allowed.
    assert!(unsafe { ContextObject::<u8>::of(std::ptr::null()) }.is_none());
    let named = |name: &str| marker(VerbsContextOps34::NAMES.iter().position(|other| *other == name).unwrap());
    macro_rules! same {
        ($of:expr => $($field:ident)*) => {
            $(assert_eq!($of.$field as usize, named(stringify!($field)), stringify!($field));)*
        };
    }
    same!(verbs.context.ops => alloc_mw bind_mw dealloc_mw poll_cq req_notify_cq post_srq_recv post_send post_recv);
    same!(verbs => advise_mr alloc_null_mr read_counters attach_counters_point_flow create_counters destroy_counters reg_dm_mr alloc_dm
        free_dm modify_flow_action_esp destroy_flow_action create_flow_action_esp modify_qp_rate_limit alloc_parent_domain dealloc_td
        alloc_td modify_cq post_srq_ops destroy_rwq_ind_table create_rwq_ind_table destroy_wq modify_wq create_wq query_rt_values
        query_device_ex open_qp create_qp_ex get_srq_num create_srq_ex open_xrcd close_xrcd create_flow destroy_flow);
    // SAFETY: nothing uses the context any more.
    unsafe {
        library.uninit_context(context);
        libc::free(object.cast());
    }
}

/// The table of the static library, which has names, if it is installed.
#[test]
fn the_table_has_the_operations_of_the_installed_library_in_its_order() {
    let archive = std::path::Path::new("/usr/lib/x86_64-linux-gnu/libibverbs.a");
    let run = |program: &str, flag: &str| {
        let output = std::process::Command::new(program).arg(flag).arg(archive).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    if !archive.is_file() {
        eprintln!("skipped: there is no libibverbs.a (libibverbs-dev)");
        return;
    }
    /// The lines of one member of an archive, after a line that contains its name and "dummy_ops".
    fn member(text: &str) -> impl Iterator<Item = Vec<&str>> {
        let is_start = |line: &&str| line.contains("dummy_ops") && line.trim_end().ends_with([':', ')']);
        let is_next = |line: &&str| line.contains(".c.o") && line.trim_end().ends_with([':', ')']);
        let after = text.lines().skip_while(move |line| !is_start(line)).skip(1);
        after.take_while(move |line| !is_next(line)).map(|line| line.split_whitespace().collect())
    }
    let symbols = run("nm", "-p");
    let functions: std::collections::HashMap<u64, &str> = member(&symbols)
        .filter_map(|words| match words[..] {
            [address, "t", name] => Some((u64::from_str_radix(address, 16).unwrap(), name)),
            _ => None,
        })
        .collect();
    let relocations = run("readelf", "-rW");
    let in_table =
        member(&relocations).skip_while(|words| !words.iter().any(|word| word.contains(".data.rel.ro"))).skip(1);
    let names: Vec<&str> = in_table
        .take_while(|words| !words.iter().any(|word| word.contains(".rela.")))
        .filter_map(|words| match words[..] {
            [_, _, _, _, ".text", "+", addend] => functions.get(&u64::from_str_radix(addend, 16).unwrap()).copied(),
            _ => None,
        })
        .collect();
    assert_eq!(names, VerbsContextOps34::NAMES);
}
