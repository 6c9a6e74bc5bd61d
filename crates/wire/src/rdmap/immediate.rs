//! The payload of an immediate message: exactly eight bytes (RFC 7306, section 6.2). That nothing follows them is
//! for the receiver to check.

immediate!("payload of an immediate message", 8);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literal_bytes() {
        let payload = Repr { data: [1, 2, 3, 4, 5, 6, 7, 8] };
        assert_wire!(payload, "0102030405060708");
        assert_eq!(std::format!("{payload}"), "imm=0x0102030405060708");
    }
}
