//! Immediate data extended transport header (IBTA vol. 1, 9.3.6): four bytes for the receive completion.

immediate!("immediate data extended transport header", 4);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literal_bytes() {
        let header = Repr { data: [0xde, 0xad, 0xbe, 0xef] };
        assert_wire!(header, "deadbeef");
        assert_eq!(std::format!("{header}"), "imm=0xdeadbeef");
    }
}
