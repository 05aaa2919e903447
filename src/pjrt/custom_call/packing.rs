//! Types narrower than a byte: packed in the plugin's memory, one byte per element in ours.

use crate::dtype::DType;

/// Bits that an element takes in the plugin's memory. Only widths that divide a byte are packed.
fn stored_bits(dtype: DType) -> usize {
    match dtype.bits() {
        bits @ (1 | 2 | 4) => bits,
        _ => 8 * dtype.size(),
    }
}

/// The bytes that `num_elements` elements take in the plugin's memory.
pub(super) fn stored_size(dtype: DType, num_elements: usize) -> usize {
    (num_elements * stored_bits(dtype)).div_ceil(8)
}

/// Whether elements share bytes in the plugin's memory, so that it takes [`unpack`] and [`pack`] to get at them.
pub fn is_packed(dtype: DType) -> bool {
    stored_bits(dtype) < 8
}

/// Copies elements out of the plugin's memory, `elements.len()` bytes' worth. The first element is in the lowest bits;
/// signs are not extended.
pub fn unpack(dtype: DType, stored: &[u8], elements: &mut [u8]) {
    if !is_packed(dtype) {
        let len = stored.len().min(elements.len());
        elements[..len].copy_from_slice(&stored[..len]);
        return;
    }
    let bits = stored_bits(dtype);
    let mask = 0xff_u8 >> (8 - bits);
    for (elements, byte) in elements.chunks_mut(8 / bits).zip(stored) {
        for (index, element) in elements.iter_mut().enumerate() {
            *element = byte >> (index * bits) & mask;
        }
    }
}

/// Copies elements to the plugin's memory: the reverse of [`unpack`].
pub fn pack(dtype: DType, elements: &[u8], stored: &mut [u8]) {
    if !is_packed(dtype) {
        let len = stored.len().min(elements.len());
        stored[..len].copy_from_slice(&elements[..len]);
        return;
    }
    let bits = stored_bits(dtype);
    let mask = 0xff_u8 >> (8 - bits);
    for (elements, byte) in elements.chunks(8 / bits).zip(stored) {
        *byte = elements.iter().enumerate().fold(0, |byte, (index, element)| byte | (element & mask) << (index * bits));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_stand_from_the_lowest_bits_up() {
        let elements = [1, 2, 3, 15, 1];
        let mut stored = [0; 3];
        pack(DType::S4, &elements, &mut stored);
        assert_eq!(stored, [0x21, 0xf3, 0x01]);
        let mut back = [0; 5];
        unpack(DType::S4, &stored, &mut back);
        assert_eq!(back, elements);
    }

    #[test]
    fn packing_reverses_unpacking() {
        for dtype in DType::all() {
            let stored: Vec<u8> = (0..stored_size(dtype, 8)).map(|i| (i * 91 + 3) as u8).collect();
            let mut elements = vec![0; 8 * dtype.size()];
            unpack(dtype, &stored, &mut elements);
            let mut back = vec![0; stored.len()];
            pack(dtype, &elements, &mut back);
            assert_eq!(back, stored, "{dtype}");
        }
    }
}
