//! The effect of an operation on one element, for each kind of number.

use super::{Comparison, Operation};

/// A number type, stored in memory in native byte order.
pub(super) trait Element<const N: usize>: Copy {
    fn read(bytes: [u8; N]) -> Self;
    fn write(self) -> [u8; N];
    /// Returns the new value of `self`, given an operand and the value to compare with, or the mask.
    fn operate(self, operation: Operation, operand: Self, compared: Self) -> Self;
}

/// Applies an operation to each element of the target, with its operand and compare operand. A missing compare operand
/// is zero.
pub(super) fn each<E: Element<N>, const N: usize>(
    operation: Operation,
    target: &mut [u8],
    operands: &[u8],
    compared: &[u8],
) {
    let compared = compared.as_chunks::<N>().0;
    let operands = operands.as_chunks::<N>().0;
    for (at, (target, operand)) in target.as_chunks_mut::<N>().0.iter_mut().zip(operands).enumerate() {
        let compared = compared.get(at).copied().unwrap_or([0; N]);
        *target = E::read(*target).operate(operation, E::read(*operand), E::read(compared)).write();
    }
}

/// Implements the operations of integers.
macro_rules! whole {
    ($($type:ty),*) => {
        $(impl Element<{ size_of::<$type>() }> for $type {
            fn read(bytes: [u8; size_of::<$type>()]) -> Self {
                Self::from_ne_bytes(bytes)
            }

            fn write(self) -> [u8; size_of::<$type>()] {
                self.to_ne_bytes()
            }

            fn operate(self, operation: Operation, operand: Self, compared: Self) -> Self {
                match operation {
                    Operation::Min => self.min(operand),
                    Operation::Max => self.max(operand),
                    Operation::Sum => self.wrapping_add(operand),
                    Operation::Prod => self.wrapping_mul(operand),
                    Operation::LogicalOr => Self::from(self != 0 || operand != 0),
                    Operation::LogicalAnd => Self::from(self != 0 && operand != 0),
                    Operation::LogicalXor => Self::from((self != 0) != (operand != 0)),
                    Operation::BitOr => self | operand,
                    Operation::BitAnd => self & operand,
                    Operation::BitXor => self ^ operand,
                    Operation::Read => self,
                    Operation::Write => operand,
                    Operation::Swap(comparison) if comparison.holds(&compared, &self) => operand,
                    Operation::Swap(_) => self,
                    Operation::MaskedSwap => operand & compared | self & !compared,
                }
            }
        })*
    };
}

whole!(i8, u8, i16, u16, i32, u32, i64, u64);

/// Implements the operations of floating-point numbers. Operations that only integers have are refused earlier.
macro_rules! fraction {
    ($($type:ty),*) => {
        $(impl Element<{ size_of::<$type>() }> for $type {
            fn read(bytes: [u8; size_of::<$type>()]) -> Self {
                Self::from_ne_bytes(bytes)
            }

            fn write(self) -> [u8; size_of::<$type>()] {
                self.to_ne_bytes()
            }

            fn operate(self, operation: Operation, operand: Self, compared: Self) -> Self {
                let truth = |yes: bool| if yes { 1.0 } else { 0.0 };
                match operation {
                    Operation::Min => self.min(operand),
                    Operation::Max => self.max(operand),
                    Operation::Sum => self + operand,
                    Operation::Prod => self * operand,
                    Operation::LogicalOr => truth(self != 0.0 || operand != 0.0),
                    Operation::LogicalAnd => truth(self != 0.0 && operand != 0.0),
                    Operation::LogicalXor => truth((self != 0.0) != (operand != 0.0)),
                    Operation::Write => operand,
                    Operation::Swap(comparison) if comparison.holds(&compared, &self) => operand,
                    _ => self,
                }
            }
        })*
    };
}

fraction!(f32, f64);

/// A complex number.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct Complex<T> {
    re: T,
    im: T,
}

/// Implements the operations of complex numbers, which have no order.
macro_rules! complex {
    ($($type:ty),*) => {
        $(impl Element<{ 2 * size_of::<$type>() }> for Complex<$type> {
            fn read(bytes: [u8; 2 * size_of::<$type>()]) -> Self {
                let parts = bytes.as_chunks::<{ size_of::<$type>() }>().0;
                Self { re: <$type>::from_ne_bytes(parts[0]), im: <$type>::from_ne_bytes(parts[1]) }
            }

            fn write(self) -> [u8; 2 * size_of::<$type>()] {
                let mut bytes = [0; 2 * size_of::<$type>()];
                let parts = bytes.as_chunks_mut::<{ size_of::<$type>() }>().0;
                (parts[0], parts[1]) = (self.re.to_ne_bytes(), self.im.to_ne_bytes());
                bytes
            }

            fn operate(self, operation: Operation, operand: Self, compared: Self) -> Self {
                let is = |number: Self| number.re != 0.0 || number.im != 0.0;
                let truth = |yes: bool| Self { re: if yes { 1.0 } else { 0.0 }, im: 0.0 };
                match operation {
                    Operation::Sum => Self { re: self.re + operand.re, im: self.im + operand.im },
                    Operation::Prod => Self {
                        re: self.re * operand.re - self.im * operand.im,
                        im: self.re * operand.im + self.im * operand.re,
                    },
                    Operation::LogicalOr => truth(is(self) || is(operand)),
                    Operation::LogicalAnd => truth(is(self) && is(operand)),
                    Operation::LogicalXor => truth(is(self) != is(operand)),
                    Operation::Write => operand,
                    Operation::Swap(Comparison::Equal) if compared == self => operand,
                    Operation::Swap(Comparison::NotEqual) if compared != self => operand,
                    _ => self,
                }
            }
        })*
    };
}

complex!(f32, f64);
