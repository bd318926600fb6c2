//! Tests of the results of operations, and of the operations that do not exist.

use super::*;

fn run<const N: usize>(
    op: c_int,
    datatype: c_int,
    form: AtomicForm,
    target: [u8; N],
    operands: &[u8],
) -> ([u8; N], Vec<u8>) {
    let bytes = TYPES[datatype as usize].0;
    let what = AtomicOp::new(op, datatype, form, N / bytes).expect("an operation there is");
    assert_eq!(AtomicOp::parse(AtomicOp::emit(op, datatype, form, N / bytes)), Ok(what));
    let (mut place, mut before) = (target, vec![0; if what.fetches() { N } else { 0 }]);
    assert_eq!(operands.len(), what.operand_bytes());
    // SAFETY: the place is ours and as long as the target.
    unsafe { what.apply(place.as_mut_ptr(), operands, &mut before) };
    (place, before)
}

#[test]
fn atomic_ops_follow_the_datatype() {
    assert_eq!(run(2, 4, AtomicForm::Write, 5_i32.to_ne_bytes(), &(-7_i32).to_ne_bytes()).0, (-2_i32).to_ne_bytes());
    assert_eq!(run(0, 5, AtomicForm::Write, 5_u32.to_ne_bytes(), &u32::MAX.to_ne_bytes()).0, 5_u32.to_ne_bytes());
    assert_eq!(run(0, 4, AtomicForm::Write, 5_i32.to_ne_bytes(), &u32::MAX.to_ne_bytes()).0, (-1_i32).to_ne_bytes());
    assert_eq!(run(3, 9, AtomicForm::Write, 1.5_f64.to_ne_bytes(), &4_f64.to_ne_bytes()).0, 6_f64.to_ne_bytes());
    assert_eq!(run(9, 1, AtomicForm::Write, [0b1100, 1], &[0b1010, 1]).0, [0b0110, 0]);
    assert_eq!(run(5, 1, AtomicForm::Write, [3, 0], &[1, 1]).0, [1, 0]);
}

#[test]
fn fetch_returns_the_previous_value() {
    let (after, before) = run(11, 7, AtomicForm::Fetch, 9_u64.to_ne_bytes(), &1_u64.to_ne_bytes());
    assert_eq!((after, before.as_slice()), (1_u64.to_ne_bytes(), &9_u64.to_ne_bytes()[..]));
    let (after, before) = run(10, 7, AtomicForm::Fetch, 9_u64.to_ne_bytes(), &[]);
    assert_eq!((after, before.as_slice()), (9_u64.to_ne_bytes(), &9_u64.to_ne_bytes()[..]));
}

#[test]
fn swap_happens_only_if_the_comparison_holds() {
    let operands = |new: i64, given: i64| [new.to_ne_bytes(), given.to_ne_bytes()].concat();
    let swap = |op, there: i64, given| {
        let (after, before) = run(op, 6, AtomicForm::Compare, there.to_ne_bytes(), &operands(77, given));
        assert_eq!(before, there.to_ne_bytes());
        i64::from_ne_bytes(after) == 77
    };
    assert!(swap(12, 5, 5) && !swap(12, 5, 6), "equal");
    assert!(swap(13, 5, 6) && !swap(13, 5, 5), "not equal");
    assert!(swap(14, 5, 5) && swap(14, 5, 4) && !swap(14, 5, 6), "given <= there");
    assert!(swap(15, 5, 4) && !swap(15, 5, 5), "given < there");
    assert!(swap(16, 5, 5) && !swap(16, 5, 4), "given >= there");
    assert!(swap(17, 5, 6) && !swap(17, 5, 5), "given > there");
    assert_eq!(run(18, 1, AtomicForm::Compare, [0b1111_0000], &[0b0000_1111, 0b0011_1100]).0, [0b1100_1100]);
}

#[test]
fn complex_numbers_are_multiplied_as_such() {
    let number = |re: f64, im: f64| -> [u8; 16] { [re.to_ne_bytes(), im.to_ne_bytes()].concat().try_into().unwrap() };
    assert_eq!(run(3, 11, AtomicForm::Write, number(1.0, 2.0), &number(3.0, 4.0)).0, number(-5.0, 10.0));
}

#[test]
fn unsupported_atomics_are_refused() {
    assert_eq!(AtomicOp::new(19, 4, AtomicForm::Write, 1), Err(Errno::OPNOTSUPP));
    assert_eq!(AtomicOp::new(2, 12, AtomicForm::Write, 1), Err(Errno::OPNOTSUPP), "long double");
    assert_eq!(AtomicOp::new(7, 9, AtomicForm::Write, 1), Err(Errno::OPNOTSUPP), "bits of a double");
    assert_eq!(AtomicOp::new(0, 11, AtomicForm::Write, 1), Err(Errno::OPNOTSUPP), "the least of two complex numbers");
    assert_eq!(AtomicOp::new(12, 4, AtomicForm::Fetch, 1), Err(Errno::OPNOTSUPP), "a swap without comparison");
    assert_eq!(AtomicOp::new(2, 4, AtomicForm::Write, 1025), Err(Errno::MSGSIZE));
}

/// All concurrent operations of several threads take effect, whether processors or locks make them atomic.
#[test]
fn operations_on_one_element_are_atomic() {
    use std::sync::atomic::{AtomicU64, Ordering};
    fn sums<const N: usize>(datatype: c_int, one: [u8; N], rounds: u64) -> u64 {
        let there = AtomicU64::new(0);
        let what = AtomicOp::new(2, datatype, AtomicForm::Write, 1).expect("an operation there is");
        assert!(what.is_atomic_at(there.as_ptr().cast()));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..rounds {
                        // SAFETY: eight bytes, aligned, which threads touch by this operation only.
                        unsafe { what.apply(there.as_ptr().cast(), &one, &mut []) };
                    }
                });
            }
        });
        there.load(Ordering::Relaxed)
    }
    let rounds = if cfg!(miri) { 10 } else { 10_000 };
    assert_eq!(sums(7, 1_u64.to_ne_bytes(), rounds), 4 * rounds);
    assert_eq!(sums(9, 1_f64.to_ne_bytes(), rounds), (4.0 * rounds as f64).to_bits());
    assert_eq!(sums(1, [1], 10), 40_u64.to_le());
}

#[test]
fn unaligned_and_wide_elements_are_not_atomic() {
    let there = [0_u64; 4];
    let place = there.as_ptr().cast::<u8>();
    let what = |datatype| AtomicOp::new(2, datatype, AtomicForm::Write, 1).expect("an operation there is");
    assert!(what(6).is_atomic_at(place) && !what(6).is_atomic_at(place.wrapping_add(4)));
    assert!(what(4).is_atomic_at(place.wrapping_add(4)) && !what(11).is_atomic_at(place));
    // The operation is executed nevertheless.
    let mut odd = [0_u8; 16];
    let place = odd.as_mut_ptr();
    let place = if place.addr() % 2 == 0 { place.wrapping_add(1) } else { place };
    // SAFETY: four bytes of ours.
    unsafe { what(4).apply(place, &7_i32.to_ne_bytes(), &mut []) };
    assert_eq!(odd.iter().map(|&byte| u32::from(byte)).sum::<u32>(), 7);
}
