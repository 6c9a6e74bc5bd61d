//! Big-endian fields in bytes. Offsets are constants of the caller, inside of a header of checked length. What lies
//! outside reads as zero and is not written, so that a wrong constant fails a test and not a process.

/// The `N` bytes from `at` on.
pub(crate) fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    debug_assert!(at + N <= bytes.len());
    if let Some(field) = bytes.get(at..at + N) {
        out.copy_from_slice(field);
    }
    out
}

pub(crate) fn u8_at(bytes: &[u8], at: usize) -> u8 {
    let [value] = array(bytes, at);
    value
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(array(bytes, at))
}

pub(crate) fn u24_at(bytes: &[u8], at: usize) -> u32 {
    let [high, middle, low] = array(bytes, at);
    u32::from_be_bytes([0, high, middle, low])
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(array(bytes, at))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(array(bytes, at))
}

pub(crate) fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    debug_assert!(at + value.len() <= bytes.len());
    if let Some(field) = bytes.get_mut(at..at + value.len()) {
        field.copy_from_slice(value);
    }
}

pub(crate) fn put_u8(bytes: &mut [u8], at: usize, value: u8) {
    put(bytes, at, &[value]);
}

pub(crate) fn put_u16(bytes: &mut [u8], at: usize, value: u16) {
    put(bytes, at, &value.to_be_bytes());
}

/// Writes the low 24 bits.
pub(crate) fn put_u24(bytes: &mut [u8], at: usize, value: u32) {
    let [_, high, middle, low] = value.to_be_bytes();
    put(bytes, at, &[high, middle, low]);
}

pub(crate) fn put_u32(bytes: &mut [u8], at: usize, value: u32) {
    put(bytes, at, &value.to_be_bytes());
}

pub(crate) fn put_u64(bytes: &mut [u8], at: usize, value: u64) {
    put(bytes, at, &value.to_be_bytes());
}
