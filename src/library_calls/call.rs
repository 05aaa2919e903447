//! What a routine is given: a batch of column-major problems, in memory of the plugin.

use faer::dyn_stack::{MemBuffer, StackReq};

use super::scalar::Element;
use crate::pjrt::{Attr, BufferRef, CallFrame, ErrorCode, FfiError};

/// The `info` of a routine whose input has NaN or infinity, for which its iterations might not end.
pub(super) const NOT_FINITE: i32 = -4;

/// One custom call: as many problems of one size as the leading dimensions of its operands say.
pub(super) struct Call<'a, 'f> {
    frame: &'f CallFrame<'a>,
    operands: Vec<BufferRef<'a>>,
    results: Vec<BufferRef<'a>>,
    /// Which results have been handed out.
    taken: Vec<bool>,
    batch: &'a [i64],
    len: usize,
}

/// The arrays of one operand or result, one for each problem.
pub(super) struct Arrays<'a, T> {
    elements: &'a mut [T],
    size: usize,
}

impl<'a, 'f> Call<'a, 'f> {
    /// The operand with the most dimensions is a batch of matrices.
    pub fn new(frame: &'f CallFrame<'a>) -> Result<Self, FfiError> {
        let operands = frame.args()?;
        let results = frame.results()?;
        let largest = operands.iter().map(|operand| operand.dims).max_by_key(|dims| dims.len()).unwrap_or_default();
        let batch =
            largest.split_last_chunk::<2>().ok_or_else(|| invalid("the call has no matrix among its operands"))?.0;
        let len = product(batch).ok_or_else(too_large)?;
        Ok(Call { frame, operands, taken: vec![false; results.len()], results, batch, len })
    }

    /// How many problems there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The last `N` dimensions of an operand.
    pub fn dims<const N: usize>(&self, operand: usize) -> Result<[usize; N], FfiError> {
        let dims = self.operands.get(operand).and_then(|buffer| buffer.dims.last_chunk::<N>());
        let dims = dims.ok_or_else(|| invalid(format!("operand {operand} with {N} dimensions is missing")))?;
        Ok(dims.map(|dim| usize::try_from(dim).unwrap_or(0)))
    }

    /// The elements of an operand, problem after problem.
    pub fn operand<T: Element>(&self, operand: usize, dims: &[usize]) -> Result<&'a [T], FfiError> {
        let (buffer, len) = self.source::<T>(operand, dims, None)?;
        if len == 0 {
            return Ok(&[]);
        }
        // SAFETY: the plugin keeps operands as they are until the call is complete, `source` made sure of type, length
        // and alignment, and that no result overlaps.
        Ok(unsafe { std::slice::from_raw_parts(buffer.ptr.cast(), len) })
    }

    /// A result to be written. Each can be had once.
    pub fn result<T: Element>(&mut self, result: usize, dims: &[usize]) -> Result<Arrays<'a, T>, FfiError> {
        let name = || format!("result {result}");
        let (Some(buffer), Some(taken @ false)) = (self.results.get(result).copied(), self.taken.get_mut(result))
        else {
            return Err(invalid(format!("{} is missing", name())));
        };
        *taken = true;
        let len = self.check::<T>(&buffer, dims, &name)?;
        let elements: &'a mut [T] = if len == 0 {
            &mut []
        } else {
            // SAFETY: the plugin leaves results to us until the call is complete, each apart from the others; this one
            // was not handed out before. `check` made sure of type, length and alignment.
            unsafe { std::slice::from_raw_parts_mut(buffer.ptr.cast(), len) }
        };
        Ok(Arrays { size: len.checked_div(self.len).unwrap_or(0), elements })
    }

    /// A result that starts as a copy of an operand, whether or not the two share their memory.
    pub fn in_place<T: Element>(
        &mut self,
        operand: usize,
        result: usize,
        dims: &[usize],
    ) -> Result<Arrays<'a, T>, FfiError> {
        let (source, len) = self.source::<T>(operand, dims, Some(result))?;
        let arrays = self.result::<T>(result, dims)?;
        if len > 0 {
            // SAFETY: both hold `len` elements, as they have the same dimensions. They may be the same memory.
            unsafe { std::ptr::copy(source.ptr.cast(), arrays.elements.as_mut_ptr(), len) };
        }
        Ok(arrays)
    }

    /// Results that the variant of the routine leaves undefined are zeros, so that every run gives the same.
    pub fn clear_rest(self) {
        for (result, _) in self.results.iter().zip(&self.taken).filter(|(_, taken)| !**taken) {
            let bytes = bytes_of(result).len();
            if bytes > 0 && !result.ptr.is_null() {
                // SAFETY: the result is ours to write, was not handed out, and has as many bytes.
                unsafe { result.ptr.write_bytes(0, bytes) };
            }
        }
    }

    /// An operand and the number of its elements, if it overlaps no result but `shared`.
    fn source<T: Element>(
        &self,
        operand: usize,
        dims: &[usize],
        shared: Option<usize>,
    ) -> Result<(BufferRef<'a>, usize), FfiError> {
        let name = || format!("operand {operand}");
        let buffer = *self.operands.get(operand).ok_or_else(|| invalid(format!("{} is missing", name())))?;
        let len = self.check::<T>(&buffer, dims, &name)?;
        let bytes = bytes_of(&buffer);
        let overlapping = |result: &BufferRef<'_>| {
            let other = bytes_of(result);
            bytes.start < other.end && other.start < bytes.end
        };
        match self.results.iter().enumerate().find(|(index, result)| Some(*index) != shared && overlapping(result)) {
            Some((index, _)) => Err(invalid(format!("{} shares its memory with result {index}", name()))),
            None => Ok((buffer, len)),
        }
    }

    /// Letters that choose a variant, such as `L` for the lower triangle.
    pub fn letter(&self, name: &str) -> Result<u8, FfiError> {
        let value = self.frame.int_attr(name)?;
        u8::try_from(value).map_err(|_| invalid(format!("attribute {name} is {value}, which is no letter")))
    }

    /// One of two letters; whether it is the first.
    pub fn is_first_of(&self, name: &str, letters: [u8; 2]) -> Result<bool, FfiError> {
        let letter = self.letter(name)?;
        match letters.contains(&letter) {
            true => Ok(letter == letters[0]),
            false => Err(unknown_letter(name, letter)),
        }
    }

    pub fn flag(&self, name: &str) -> Result<bool, FfiError> {
        match self.frame.attr(name) {
            Some(Attr::Bool(value)) => Ok(value),
            found => Err(invalid(format!("attribute {name} must be true or false, found {found:?}"))),
        }
    }

    pub fn index(&self, name: &str) -> Result<usize, FfiError> {
        let value = self.frame.int_attr(name)?;
        usize::try_from(value).map_err(|_| invalid(format!("attribute {name} is {value}, which is no index")))
    }

    /// The number of elements of a buffer, if it is what the routine expects.
    fn check<T: Element>(
        &self,
        buffer: &BufferRef<'_>,
        dims: &[usize],
        name: &dyn Fn() -> String,
    ) -> Result<usize, FfiError> {
        let fits = buffer.dims.strip_prefix(self.batch).is_some_and(|rest| {
            rest.len() == dims.len()
                && rest.iter().zip(dims).all(|(&dim, &expected)| usize::try_from(dim) == Ok(expected))
        });
        if !fits || buffer.dtype != T::DTYPE {
            let dims: Vec<i64> = self.batch.iter().copied().chain(dims.iter().map(|&dim| dim as i64)).collect();
            return Err(invalid(format!(
                "{} is {}{:?}, the routine takes {}{dims:?}",
                name(),
                buffer.dtype,
                buffer.dims,
                T::DTYPE
            )));
        }
        let len = product(buffer.dims).ok_or_else(too_large)?;
        if len > 0 && (buffer.ptr.is_null() || !buffer.ptr.cast::<T>().is_aligned()) {
            return Err(invalid(format!("{} is at {:?}, which is not aligned", name(), buffer.ptr)));
        }
        Ok(len)
    }
}

impl<'a, T> Arrays<'a, T> {
    /// The array of one problem.
    pub fn at(&mut self, problem: usize) -> &mut [T] {
        &mut self.elements[problem * self.size..][..self.size]
    }
}

/// Memory for one routine's intermediate results.
pub(super) fn scratch(size: StackReq) -> Result<MemBuffer, FfiError> {
    MemBuffer::try_new(size)
        .map_err(|_| FfiError::new(ErrorCode::ResourceExhausted, "no memory for the routine's workspace"))
}

pub(super) fn invalid(message: impl Into<String>) -> FfiError {
    FfiError::new(ErrorCode::InvalidArgument, message)
}

pub(super) fn unknown_letter(name: &str, letter: u8) -> FfiError {
    invalid(format!("attribute {name} is {:?}, which the routine does not know", char::from(letter)))
}

fn too_large() -> FfiError {
    invalid("the call's arrays are too large")
}

fn product(dims: &[i64]) -> Option<usize> {
    // An empty array may have other dimensions of any size.
    if dims.contains(&0) {
        return Some(0);
    }
    dims.iter().try_fold(1_usize, |product, &dim| product.checked_mul(usize::try_from(dim).ok()?))
}

fn bytes_of(buffer: &BufferRef<'_>) -> std::ops::Range<usize> {
    let start = buffer.ptr.addr();
    start..start + product(buffer.dims).unwrap_or(0) * buffer.dtype.size()
}
