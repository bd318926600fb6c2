//! Table entries of unsupported functions: each returns `-FI_ENOSYS`.

use crate::abi::info::{Info, RxAttr, TxAttr};
use crate::abi::objects::{Fid, FidAv, FidDomain, FidEp, FidFabric};
use std::ffi::{c_char, c_int, c_void};

const ENOSYS: c_int = -38;

macro_rules! stubs {
    ($($name:ident($($argument:ty),*);)*) => {
        $(
            /// # Safety
            ///
            /// None: nothing behind the arguments is touched.
            pub(crate) unsafe extern "C" fn $name($(_: $argument),*) -> c_int {
                ENOSYS
            }
        )*
    };
}

stubs! {
    bind(*mut Fid, *mut Fid, u64);
    control(*mut Fid, c_int, *mut c_void);
    ops_open(*mut Fid, *const c_char, u64, *mut *mut c_void, *mut c_void);
    tostr(*const Fid, *mut c_char, usize);
    ops_set(*mut Fid, *const c_char, u64, *mut c_void, *mut c_void);
    passive_ep(*mut FidFabric, *mut Info, *mut *mut c_void, *mut c_void);
    wait_open(*mut FidFabric, *mut c_void, *mut *mut c_void);
    scalable_ep(*mut FidDomain, *mut Info, *mut *mut FidEp, *mut c_void);
    poll_open(*mut FidDomain, *mut c_void, *mut *mut c_void);
    stx_ctx(*mut FidDomain, *mut TxAttr, *mut *mut c_void, *mut c_void);
    srx_ctx(*mut FidDomain, *mut RxAttr, *mut *mut FidEp, *mut c_void);
    query_collective(*mut FidDomain, c_int, *mut c_void, u64);
    insertsvc(*mut FidAv, *const c_char, *const c_char, *mut u64, u64, *mut c_void);
    insertsym(*mut FidAv, *const c_char, usize, *const c_char, usize, *mut u64, u64, *mut c_void);
    av_set(*mut FidAv, *mut c_void, *mut *mut c_void, *mut c_void);
    tx_ctx(*mut FidEp, c_int, *mut TxAttr, *mut *mut FidEp, *mut c_void);
    rx_ctx(*mut FidEp, c_int, *mut RxAttr, *mut *mut FidEp, *mut c_void);
    setname(*mut Fid, *mut c_void, usize);
    getpeer(*mut FidEp, *mut c_void, *mut usize);
    connect(*mut FidEp, *const c_void, *const c_void, usize);
    listen(*mut c_void);
    accept(*mut FidEp, *const c_void, usize);
    reject(*mut c_void, *mut Fid, *const c_void, usize);
    shutdown(*mut FidEp, u64);
    join(*mut FidEp, *const c_void, u64, *mut *mut c_void, *mut c_void);
}
