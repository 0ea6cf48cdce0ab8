extension String {
    /// Whether no more than 30 marks combine with one character: the Stream-Safe Text Format (UAX #15, section 13).
    ///
    /// Strangers' text is read only where this holds. String compares and hashes by canonical equivalence, and for that
    /// puts such marks into order, in quadratic time [measured: a second to compare 80 kB of them with a literal].
    /// Linear.
    public var isStreamSafe: Bool {
        // All bytes at once: nearly every text is ASCII, and a proof is thousands of bytes of it.
        let bits = unsafe utf8.withContiguousStorageIfAvailable { unsafe $0.reduce(0, |) }
        if let bits, bits < 0x80 { return true }
        var marks = 0
        for scalar in unicodeScalars {
            marks = scalar.properties.canonicalCombiningClass == .notReordered ? 0 : marks + 1
            if marks > 30 { return false }
        }
        return true
    }
}
