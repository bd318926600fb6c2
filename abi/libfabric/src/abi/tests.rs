//! Compares sizes, offsets and values with the installed headers. A C program that `cc` compiles prints those of the
//! headers.

use super::consts::*;
use super::info::*;
use super::objects::*;
use super::requests::*;
use super::tables::*;
use std::mem::offset_of;
use std::path::Path;
use std::process::Command;

/// Names and values to compare: those of the C headers and those of this crate.
type Facts = Vec<(String, usize)>;

/// Adds the size of a structure and the offsets of its fields: `ours as "theirs" { our_field = "their field", … }`.
macro_rules! layout {
    ($facts:ident, $($ours:ident as $theirs:literal { $($field:ident = $name:literal),* $(,)? })*) => {
        $(
            $facts.push((format!("sizeof(struct {})", $theirs), size_of::<$ours>()));
            $($facts.push((format!("offsetof(struct {}, {})", $theirs, $name), offset_of!($ours, $field)));)*
        )*
    };
}

/// Adds a function table with the field names of C.
macro_rules! table {
    ($facts:ident, $($ours:ident as $theirs:literal { $($field:ident)* })*) => {
        $(
            $facts.push((format!("sizeof(struct {})", $theirs), size_of::<$ours>()));
            $($facts.push((format!("offsetof(struct {}, {})", $theirs, stringify!($field)), offset_of!($ours, $field)));)*
        )*
    };
}

/// Adds constants with the names of C.
macro_rules! values {
    ($facts:ident, $($name:ident)*) => {
        $($facts.push((format!("(size_t)({})", stringify!($name)), $name as usize));)*
    };
}

fn infos(facts: &mut Facts) {
    layout!(facts,
        TxAttr as "fi_tx_attr" { op_flags = "op_flags", inject_size = "inject_size", tclass = "tclass" }
        RxAttr as "fi_rx_attr" { op_flags = "op_flags", total_buffered_recv = "total_buffered_recv", iov_limit = "iov_limit" }
        EpAttr as "fi_ep_attr" { kind = "type", max_msg_size = "max_msg_size", mem_tag_format = "mem_tag_format", auth_key = "auth_key" }
        FabricAttr as "fi_fabric_attr" { name = "name", prov_name = "prov_name", api_version = "api_version" }
        Info as "fi_info" { caps = "caps", addr_format = "addr_format", src_addr = "src_addr", tx_attr = "tx_attr",
            domain_attr = "domain_attr", nic = "nic" }
        Provider as "fi_provider" { fi_version = "fi_version", context = "context", name = "name", getinfo = "getinfo",
            fabric = "fabric", cleanup = "cleanup" }
    );
    // Later versions append fields. The size is that of 1.17, so only offsets are compared.
    assert_eq!(size_of::<DomainAttr>(), 192);
    for (name, at) in [
        ("name", offset_of!(DomainAttr, name)),
        ("threading", offset_of!(DomainAttr, threading)),
        ("av_type", offset_of!(DomainAttr, av_type)),
        ("mr_mode", offset_of!(DomainAttr, mr_mode)),
        ("mr_key_size", offset_of!(DomainAttr, mr_key_size)),
        ("cq_data_size", offset_of!(DomainAttr, cq_data_size)),
        ("max_ep_tx_ctx", offset_of!(DomainAttr, max_ep_tx_ctx)),
        ("caps", offset_of!(DomainAttr, caps)),
        ("tclass", offset_of!(DomainAttr, tclass)),
    ] {
        facts.push((format!("offsetof(struct fi_domain_attr, {name})"), at));
    }
}

fn objects(facts: &mut Facts) {
    layout!(facts,
        Fid as "fid" { class = "fclass", context = "context", ops = "ops" }
        FidFabric as "fid_fabric" { ops = "ops", api_version = "api_version" }
        FidDomain as "fid_domain" { ops = "ops", mr = "mr" }
        FidEp as "fid_ep" { ops = "ops", cm = "cm", msg = "msg", rma = "rma", tagged = "tagged", atomic = "atomic",
            collective = "collective" }
        FidAv as "fid_av" { ops = "ops" }
        FidMr as "fid_mr" { mem_desc = "mem_desc", key = "key" }
        FidEq as "fid_eq" { ops = "ops" }
        FidCq as "fid_cq" { ops = "ops" }
        FidCntr as "fid_cntr" { ops = "ops" }
    );
}

fn requests(facts: &mut Facts) {
    layout!(facts,
        IoVec as "iovec" { base = "iov_base", len = "iov_len" }
        Ioc as "fi_ioc" { addr = "addr", count = "count" }
        Msg as "fi_msg" { iov = "msg_iov", iov_count = "iov_count", addr = "addr", context = "context", data = "data" }
        MsgTagged as "fi_msg_tagged" { iov = "msg_iov", addr = "addr", tag = "tag", ignore = "ignore", data = "data" }
        RmaIov as "fi_rma_iov" { addr = "addr", len = "len", key = "key" }
        RmaIoc as "fi_rma_ioc" { addr = "addr", count = "count", key = "key" }
        MsgRma as "fi_msg_rma" { addr = "addr", rma_iov = "rma_iov", rma_iov_count = "rma_iov_count", data = "data" }
        MsgAtomic as "fi_msg_atomic" { rma_iov = "rma_iov", datatype = "datatype", op = "op", context = "context", data = "data" }
        AtomicAttr as "fi_atomic_attr" { count = "count", size = "size" }
        AvAttr as "fi_av_attr" { kind = "type", count = "count", name = "name", flags = "flags" }
        CqAttr as "fi_cq_attr" { size = "size", format = "format", wait_obj = "wait_obj", wait_cond = "wait_cond",
            wait_set = "wait_set" }
        CntrAttr as "fi_cntr_attr" { events = "events", wait_obj = "wait_obj", flags = "flags" }
        CqEntry as "fi_cq_tagged_entry" { op_context = "op_context", flags = "flags", len = "len", buf = "buf", data = "data",
            tag = "tag" }
        EqErrEntry as "fi_eq_err_entry" { data = "data", err = "err", err_data = "err_data" }
    );
    // This structure, too, is longer in later versions.
    facts.push(("offsetof(struct fi_cq_err_entry, olen)".to_owned(), offset_of!(CqErrEntry, olen)));
    facts.push(("offsetof(struct fi_cq_err_entry, err_data_size)".to_owned(), offset_of!(CqErrEntry, err_data_size)));
    facts.push(("offsetof(struct fi_mr_attr, requested_key)".to_owned(), offset_of!(MrAttr, requested_key)));
    facts.push(("offsetof(struct fi_mr_attr, auth_key)".to_owned(), offset_of!(MrAttr, auth_key)));
}

fn tables(facts: &mut Facts) {
    table!(facts,
        Ops as "fi_ops" { size close bind control ops_open tostr ops_set }
        FabricOps as "fi_ops_fabric" { domain passive_ep eq_open wait_open trywait domain2 }
        DomainOps as "fi_ops_domain" { av_open cq_open endpoint scalable_ep cntr_open poll_open stx_ctx srx_ctx query_atomic
            query_collective endpoint2 }
        MrOps as "fi_ops_mr" { reg regv regattr }
        EpOps as "fi_ops_ep" { cancel getopt setopt tx_ctx rx_ctx rx_size_left tx_size_left }
        CmOps as "fi_ops_cm" { setname getname getpeer connect listen accept reject shutdown join }
        MsgOps as "fi_ops_msg" { recv recvv recvmsg send sendv sendmsg inject senddata injectdata }
        TaggedOps as "fi_ops_tagged" { recv recvv recvmsg send sendv sendmsg inject senddata injectdata }
        RmaOps as "fi_ops_rma" { read readv readmsg write writev writemsg inject writedata injectdata }
        AtomicOps as "fi_ops_atomic" { write writev writemsg inject readwrite readwritev readwritemsg compwrite compwritev
            compwritemsg writevalid readwritevalid compwritevalid }
        EqOps as "fi_ops_eq" { read readerr write sread strerror }
        CqOps as "fi_ops_cq" { read readfrom readerr sread sreadfrom signal strerror }
        CntrOps as "fi_ops_cntr" { read readerr add set wait adderr seterr }
    );
    // Later versions append entries to the table of address vectors.
    facts.push(("offsetof(struct fi_ops_av, insert)".to_owned(), offset_of!(AvOps, insert)));
    facts.push(("offsetof(struct fi_ops_av, remove)".to_owned(), offset_of!(AvOps, remove)));
    facts.push(("offsetof(struct fi_ops_av, straddr)".to_owned(), offset_of!(AvOps, straddr)));
    facts.push(("offsetof(struct fi_ops_av, av_set)".to_owned(), offset_of!(AvOps, av_set)));
}

fn numbers(facts: &mut Facts) {
    values!(facts,
        FI_MSG FI_RMA FI_TAGGED FI_ATOMIC FI_READ FI_WRITE FI_RECV FI_SEND FI_REMOTE_READ FI_REMOTE_WRITE FI_MULTI_RECV
        FI_REMOTE_CQ_DATA FI_MORE FI_PEEK FI_COMPLETION FI_INJECT FI_INJECT_COMPLETE FI_TRANSMIT_COMPLETE
        FI_DELIVERY_COMPLETE FI_COMMIT_COMPLETE FI_MATCH_COMPLETE FI_LOCAL_COMM FI_REMOTE_COMM FI_RMA_EVENT FI_SOURCE
        FI_DIRECTED_RECV FI_CLAIM FI_DISCARD FI_SELECTIVE_COMPLETION FI_FETCH_ATOMIC FI_COMPARE_ATOMIC FI_ADDR_UNSPEC
        FI_ADDR_NOTAVAIL FI_PROV_SPECIFIC FI_FORMAT_UNSPEC FI_MR_BASIC FI_MR_SCALABLE FI_PROGRESS_UNSPEC FI_PROGRESS_AUTO
        FI_PROGRESS_MANUAL FI_THREAD_UNSPEC FI_THREAD_DOMAIN FI_RM_ENABLED FI_EP_UNSPEC FI_EP_RDM FI_ORDER_STRICT FI_TC_UNSPEC
        FI_CLASS_FABRIC FI_CLASS_DOMAIN FI_CLASS_EP FI_CLASS_AV FI_CLASS_MR FI_CLASS_EQ FI_CLASS_CQ FI_CLASS_CNTR FI_GETWAIT
        FI_GETOPSFLAG FI_SETOPSFLAG FI_ENABLE FI_GETWAITOBJ FI_WAIT_NONE FI_WAIT_UNSPEC FI_WAIT_FD FI_WAIT_YIELD
        FI_CQ_FORMAT_UNSPEC FI_CQ_FORMAT_CONTEXT FI_CQ_FORMAT_MSG FI_CQ_FORMAT_DATA FI_CQ_FORMAT_TAGGED FI_CQ_COND_NONE
        FI_OPT_MIN_MULTI_RECV FI_OPT_CM_DATA_SIZE
    );
    use crate::errno::Errno;
    for (name, errno) in [
        ("FI_EAGAIN", Errno::AGAIN),
        ("FI_ENOSYS", Errno::NOSYS),
        ("FI_ENOMSG", Errno::NOMSG),
        ("FI_ENODATA", Errno::NODATA),
        ("FI_EMSGSIZE", Errno::MSGSIZE),
        ("FI_ENOPROTOOPT", Errno::NOPROTOOPT),
        ("FI_EOPNOTSUPP", Errno::OPNOTSUPP),
        ("FI_ECONNABORTED", Errno::CONNABORTED),
        ("FI_EHOSTUNREACH", Errno::HOSTUNREACH),
        ("FI_ECANCELED", Errno::CANCELED),
        ("FI_EKEYREJECTED", Errno::KEYREJECTED),
        ("FI_EOTHER", Errno::OTHER),
        ("FI_ETOOSMALL", Errno::TOOSMALL),
        ("FI_EOPBADSTATE", Errno::OPBADSTATE),
        ("FI_EAVAIL", Errno::AVAIL),
        ("FI_EBADFLAGS", Errno::BADFLAGS),
        ("FI_ENOCQ", Errno::NOCQ),
        ("FI_ETRUNC", Errno::TRUNC),
        ("FI_ENOKEY", Errno::NOKEY),
        ("FI_ENOAV", Errno::NOAV),
    ] {
        facts.push((name.to_owned(), errno.0 as usize));
    }
}

#[test]
fn layout_matches_the_installed_headers() {
    if !Path::new("/usr/include/rdma/fabric.h").is_file() {
        eprintln!("skipped: there is no rdma/fabric.h (scripts/setup)");
        return;
    }
    let mut facts = Facts::new();
    [infos, objects, requests, tables, numbers].into_iter().for_each(|ask| ask(&mut facts));
    let headers = [
        "fabric",
        "fi_domain",
        "fi_endpoint",
        "fi_eq",
        "fi_cm",
        "fi_rma",
        "fi_atomic",
        "fi_tagged",
        "fi_errno",
        "providers/fi_prov",
    ];
    let mut source = String::from("#include <stdio.h>\n");
    headers.iter().for_each(|header| source += &format!("#include <rdma/{header}.h>\n"));
    source += "int main(void) {\n";
    facts.iter().for_each(|(question, _)| source += &format!("printf(\"%zu\\n\", (size_t)({question}));\n"));
    source += "return 0; }\n";
    let folder = std::env::temp_dir().join(format!("isthmus-fi-layout-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (file, program) = (folder.join("layout.c"), folder.join("layout"));
    std::fs::write(&file, source).unwrap();
    let cc = Command::new("cc").arg("-w").arg("-o").arg(&program).arg(&file).output().unwrap();
    let said = Command::new(&program).output();
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(cc.status.success(), "{}", String::from_utf8_lossy(&cc.stderr));
    let said = String::from_utf8(said.unwrap().stdout).unwrap();
    let theirs: Vec<usize> = said.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(theirs.len(), facts.len());
    let wrong: Vec<_> = facts.iter().zip(theirs).filter(|((_, ours), theirs)| ours != theirs).collect();
    assert!(wrong.is_empty(), "question, ours, theirs: {wrong:#?}");
}
