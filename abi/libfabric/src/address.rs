//! Address vectors: the names of endpoints by number.

use crate::abi::consts::{FI_ADDR_NOTAVAIL, FI_CLASS_AV};
use crate::abi::objects::{Fid, FidAv, FidDomain};
use crate::abi::requests::AvAttr;
use crate::abi::tables::{AvOps, Ops};
use crate::domain::DomainObject;
use crate::engine::name::{NAME_BYTES, Name};
use crate::errno::{Errno, call};
use crate::shared::Shared;
use crate::stubs;
use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

/// Flag of an insertion: the context is a list of errors.
const FI_SYNC_ERR: u64 = 1 << 58;

/// The names of an address vector. Numbers are never reused.
#[derive(Debug, Default)]
pub(crate) struct Av {
    names: Vec<Option<Name>>,
    /// The lowest number of each name.
    first: HashMap<Name, usize>,
    /// The lowest number of the name, by number. Each directed receive looks it up.
    firsts: Vec<usize>,
}

impl Av {
    pub(crate) fn name(&self, at: usize) -> Option<Name> {
        self.names.get(at).copied().flatten()
    }

    pub(crate) fn names(&self) -> &[Option<Name>] {
        &self.names
    }

    /// Returns the number that represents all numbers of the same name.
    #[inline]
    pub(crate) fn first(&self, at: usize) -> usize {
        self.firsts.get(at).copied().unwrap_or(at)
    }

    fn insert(&mut self, name: Name) -> usize {
        let number = self.names.len();
        self.names.push(Some(name));
        self.firsts.push(*self.first.entry(name).or_insert(number));
        number
    }

    fn remove(&mut self, at: usize) -> Result<(), Errno> {
        let name = self.names.get_mut(at).and_then(Option::take).ok_or(Errno::INVAL)?;
        if self.first.get(&name) == Some(&at) {
            let mut others = (0..self.names.len()).filter(|&other| self.names[other] == Some(name));
            match others.next() {
                Some(next) => {
                    self.first.insert(name, next);
                    std::iter::once(next).chain(others).for_each(|other| self.firsts[other] = next);
                }
                None => drop(self.first.remove(&name)),
            }
        }
        self.firsts[at] = at;
        Ok(())
    }
}

#[repr(C)]
pub(crate) struct AvObject {
    raw: FidAv,
    shared: Arc<Shared>,
    pub(crate) slot: u32,
}

static OPS: Ops = Ops {
    size: size_of::<Ops>(),
    close,
    bind,
    control: stubs::control,
    ops_open: stubs::ops_open,
    tostr: stubs::tostr,
    ops_set: stubs::ops_set,
};

static AV_OPS: AvOps = AvOps {
    size: size_of::<AvOps>(),
    insert,
    insertsvc: stubs::insertsvc,
    insertsym: stubs::insertsym,
    remove,
    lookup,
    straddr,
    av_set: stubs::av_set,
};

/// # Safety
///
/// `av` was made in `open` and is not closed.
unsafe fn object<'a>(av: *mut FidAv) -> &'a AvObject {
    // SAFETY: an object begins with what the caller sees of it.
    unsafe { &*av.cast::<AvObject>() }
}

/// Opens an address vector. Address vectors that processes share by name are not supported.
pub(crate) unsafe extern "C" fn open(
    domain: *mut FidDomain,
    attr: *mut AvAttr,
    av: *mut *mut FidAv,
    context: *mut c_void,
) -> c_int {
    call(|| {
        // SAFETY: null, or readable.
        if let Some(attr) = unsafe { attr.as_ref() }
            && !attr.name.is_null()
        {
            return Err(Errno::NOSYS);
        }
        // SAFETY: a domain of ours.
        let shared = unsafe { DomainObject::shared(domain) };
        let slot = shared.lock().avs.insert(Av::default());
        let raw = FidAv { fid: Fid { class: FI_CLASS_AV, context, ops: &OPS }, ops: &AV_OPS };
        // SAFETY: writable.
        unsafe { av.write(Box::into_raw(Box::new(AvObject { raw, shared, slot })).cast()) };
        Ok(())
    })
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    call(|| {
        // SAFETY: `fid` is the first field of an object made in `open`, which its owner gives back.
        let object = unsafe { Box::from_raw(fid.cast::<AvObject>()) };
        let mut state = object.shared.lock();
        state.avs.remove(object.slot);
        state.members.values_mut().filter(|member| member.av == Some(object.slot)).for_each(|m| m.av = None);
        Ok(())
    })
}

/// Accepts an event queue. Insertions are synchronous, so no events are reported there.
unsafe extern "C" fn bind(_fid: *mut Fid, _eq: *mut Fid, _flags: u64) -> c_int {
    0
}

unsafe extern "C" fn insert(
    av: *mut FidAv,
    names: *const c_void,
    count: usize,
    answers: *mut u64,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    let mut inserted = 0;
    let code = call(|| {
        // SAFETY: an address vector of ours.
        let AvObject { shared, slot, .. } = unsafe { object(av) };
        let mut state = shared.lock();
        for at in 0..count {
            // SAFETY: `count` names of our length stand there, at any address.
            let bytes = unsafe { names.cast::<[u8; NAME_BYTES]>().add(at).read_unaligned() };
            let name = Name::parse(&bytes);
            let vector = state.avs.get_mut(*slot).ok_or(Errno::INVAL)?;
            let number = name.map(|name| vector.insert(name));
            if let Some(number) = number {
                inserted += 1;
                let first = vector.first(number);
                let members = state.members.values_mut();
                members.filter(|member| member.av == Some(*slot)).for_each(|m| m.endpoint.insert(number, name, first));
            }
            if !answers.is_null() {
                // SAFETY: there is room for `count` numbers.
                unsafe { answers.add(at).write(number.map_or(FI_ADDR_NOTAVAIL, |number| number as u64)) };
            }
            if flags & FI_SYNC_ERR != 0 && !context.is_null() {
                // SAFETY: with this flag the context is room for `count` errors.
                unsafe { context.cast::<c_int>().add(at).write(if name.is_some() { 0 } else { Errno::INVAL.0 }) };
            }
        }
        Ok(())
    });
    if code < 0 { code } else { inserted }
}

unsafe extern "C" fn remove(av: *mut FidAv, numbers: *mut u64, count: usize, _flags: u64) -> c_int {
    call(|| {
        // SAFETY: an address vector of ours.
        let AvObject { shared, slot, .. } = unsafe { object(av) };
        let mut state = shared.lock();
        for at in 0..count {
            // SAFETY: `count` numbers stand there.
            let number = unsafe { *numbers.add(at) } as usize;
            let vector = state.avs.get_mut(*slot).ok_or(Errno::INVAL)?;
            vector.remove(number)?;
            let members = state.members.values_mut();
            members.filter(|member| member.av == Some(*slot)).for_each(|m| m.endpoint.insert(number, None, number));
        }
        Ok(())
    })
}

unsafe extern "C" fn lookup(av: *mut FidAv, number: u64, name: *mut c_void, len: *mut usize) -> c_int {
    call(|| {
        // SAFETY: an address vector of ours.
        let AvObject { shared, slot, .. } = unsafe { object(av) };
        let state = shared.lock();
        let vector = state.avs.get(*slot).ok_or(Errno::INVAL)?;
        let found = vector.name(usize::try_from(number).map_err(|_| Errno::INVAL)?).ok_or(Errno::INVAL)?;
        // SAFETY: `len` says how much room there is, and may be written.
        unsafe { put(&found.emit(), name, len) };
        Ok(())
    })
}

/// Writes as much of `bytes` as there is room for, and their length to `len`.
///
/// # Safety
///
/// `len` is writable, and `into` has room for the number of bytes that `len` holds.
pub(crate) unsafe fn put(bytes: &[u8], into: *mut c_void, len: *mut usize) {
    // SAFETY: as promised.
    unsafe {
        let room = len.replace(bytes.len());
        if !into.is_null() {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), into.cast(), bytes.len().min(room));
        }
    }
}

unsafe extern "C" fn straddr(_av: *mut FidAv, name: *const c_void, buf: *mut c_char, len: *mut usize) -> *const c_char {
    // SAFETY: a name of our length stands there, at any address.
    let bytes = unsafe { name.cast::<[u8; NAME_BYTES]>().read_unaligned() };
    let mut text = Name::parse(&bytes).map_or_else(|| "?".to_owned(), |name| name.to_string()).into_bytes();
    text.push(0);
    // SAFETY: `len` says how much room there is; the text ends with a zero wherever it is cut.
    unsafe {
        let room = *len;
        put(&text, buf.cast(), len);
        if room > 0 && room < text.len() {
            buf.add(room - 1).write(0);
        }
    }
    buf
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duplicate_names_resolve_to_the_lowest_number() {
        let name = |nic| Name { nic, number: None, domain: isthmus_client::DomainId::new(1).expect("not zero") };
        let mut av = Av::default();
        let numbers: Vec<usize> = [name(1), name(2), name(1), name(1)].map(|name| av.insert(name)).to_vec();
        assert_eq!(numbers, [0, 1, 2, 3]);
        let firsts = |av: &Av| [0, 1, 2, 3].map(|at| av.first(at));
        assert_eq!(firsts(&av), [0, 1, 0, 0]);
        av.remove(0).expect("it is there");
        assert_eq!(firsts(&av), [0, 1, 2, 2]);
        av.remove(3).expect("it is there");
        av.remove(2).expect("it is there");
        assert_eq!(firsts(&av), [0, 1, 2, 3]);
        assert_eq!(av.insert(name(1)), 4);
        assert_eq!(av.first(4), 4);
    }
}
