extension String {
    /// Whether both are the same bytes, as the database compares texts; nil is no text. Linear.
    ///
    /// Ids are compared with this alone. String's own equality is canonical equivalence. That takes an accent in two
    /// spellings, or the Kelvin sign and the letter K, for one text, and takes quadratic time for marks that combine
    /// with one character.
    public func isSameText(as other: String?) -> Bool {
        guard let other else { return false }
        return utf8.elementsEqual(other.utf8)
    }
}

extension String? {
    /// The same for optional texts; nil is the same as nil.
    public func isSameText(as other: String?) -> Bool {
        guard let self else { return other == nil }
        return self.isSameText(as: other)
    }
}
