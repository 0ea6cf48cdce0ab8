/// The SQL text of a block's hash. The hashes of its rows are those of the view `sealable_rows`.
enum SealText {
    /// The form of the rows' text, as each block names it.
    static let form = 1

    /// SQL: the hash of a block.
    ///
    /// - Parameters:
    ///   - hashes: all hashes of its rows, one after the other.
    ///   - names: all names of its rows, a line for each.
    static func hash(hashes: String, names: String) -> String {
        """
        sha256(previous_hash || record_send(row(number, form, first_xid, end_xid)) || \(hashes)
          || convert_to(\(names), 'UTF8'))
        """
    }

    /// SQL: the hash before the first block.
    static let noHash = "decode(repeat('00', 32), 'hex')"
}
