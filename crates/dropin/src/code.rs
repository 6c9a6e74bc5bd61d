//! The instructions of a jump through a pointer, and of a function that does nothing.

use object::elf;

/// The number of bytes between one function and the next.
pub const STEP: u64 = 16;

/// Instructions for one architecture.
#[derive(Clone, Copy, Debug)]
pub enum Code {
    /// x86-64.
    X86,
    /// AArch64, little-endian.
    Arm,
}

impl Code {
    /// The instructions for a machine, if there are any.
    pub fn of(machine: elf::Machine) -> Option<Code> {
        match machine {
            elf::EM_X86_64 => Some(Code::X86),
            elf::EM_AARCH64 => Some(Code::Arm),
            _ => None,
        }
    }

    /// The relocation that writes a symbol's address into eight bytes.
    pub fn relocation(self) -> elf::RelocationType {
        match self {
            Code::X86 => elf::R_X86_64_GLOB_DAT,
            Code::Arm => elf::R_AARCH64_GLOB_DAT,
        }
    }

    /// A jump to the target of the pointer at `slot`, from `at`: addresses in the library, less than 2 GiB apart. Every
    /// register that holds an argument, and the stack, stay as they are.
    pub fn jump(self, at: u64, slot: u64) -> [u8; STEP as usize] {
        match self {
            // endbr64 (a target of indirect calls, where the processor watches those); jmp *slot(%rip)
            Code::X86 => {
                let next = at + 4 + 6;
                let distance = slot.wrapping_sub(next) as u32;
                filled(&[&[0xf3, 0x0f, 0x1e, 0xfa, 0xff, 0x25], &distance.to_le_bytes()[..]].concat(), 0xcc)
            }
            // bti c; adrp x16, slot; ldr x16, [x16, low bits of slot]; br x16
            Code::Arm => {
                let pages = ((slot >> 12).wrapping_sub((at + 4) >> 12) & 0x1f_ffff) as u32;
                let adrp = 0x9000_0010 | (pages & 3) << 29 | (pages >> 2) << 5;
                let load = 0xf940_0210 | ((slot & 0xfff) as u32 >> 3) << 10;
                words([BTI_C, adrp, load, 0xd61f_0200])
            }
        }
    }

    /// A function that returns a small number, as an `int` or as a pointer.
    pub fn constant(self, value: i32) -> [u8; STEP as usize] {
        match self {
            // endbr64; mov $value, %eax; ret
            Code::X86 => {
                let value = value.to_le_bytes();
                filled(&[&[0xf3, 0x0f, 0x1e, 0xfa, 0xb8], &value[..], &[0xc3]].concat(), 0xcc)
            }
            // bti c; movz x0, value; ret
            Code::Arm => words([BTI_C, 0xd280_0000 | (value as u32 & 0xffff) << 5, 0xd65f_03c0, 0xd503_201f]),
        }
    }
}

/// A target of indirect calls, where the processor watches those.
const BTI_C: u32 = 0xd503_245f;

fn filled(code: &[u8], rest: u8) -> [u8; STEP as usize] {
    let mut bytes = [rest; STEP as usize];
    bytes[..code.len()].copy_from_slice(code);
    bytes
}

fn words(words: [u32; 4]) -> [u8; STEP as usize] {
    let mut bytes = [0; STEP as usize];
    for (to, word) in bytes.chunks_exact_mut(4).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes are those that an assembler and objdump show.
    #[test]
    fn literal_bytes() {
        assert_eq!(Code::X86.jump(0x1000, 0x3008)[..10], [0xf3, 0x0f, 0x1e, 0xfa, 0xff, 0x25, 0xfe, 0x1f, 0, 0]);
        assert_eq!(Code::X86.constant(38)[..10], [0xf3, 0x0f, 0x1e, 0xfa, 0xb8, 38, 0, 0, 0, 0xc3]);
        let arm = Code::Arm.jump(0x1000, 0x6018);
        // adrp x16, +5 pages: b0000030 has immlo 01, immhi 1.
        assert_eq!(arm[4..8], 0xb000_0030u32.to_le_bytes());
        assert_eq!(arm[8..12], 0xf940_0e10u32.to_le_bytes());
        assert_eq!(arm[12..], 0xd61f_0200u32.to_le_bytes());
        assert_eq!(Code::Arm.constant(38)[4..8], 0xd280_04c0u32.to_le_bytes());
    }
}
