extension Int {
    /// The number with its words, for people: `1 receipt`, `2 receipts`.
    ///
    /// - Parameter many: the words for every number but 1; nil: `one` and an `s`.
    package func counted(_ one: String, _ many: String? = nil) -> String {
        "\(self) \(self == 1 ? one : many ?? "\(one)s")"
    }
}
