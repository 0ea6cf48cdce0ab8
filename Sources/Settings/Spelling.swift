extension String {
    /// The problem of a setting of this name that nobody knows, with the known setting that is spelled most like it: no
    /// more than a third of the characters may differ, or one.
    func unknownSetting(among known: Set<String>) -> String {
        let near = known.map { (name: $0, edits: edits(to: $0)) }
            .filter { $0.edits <= Swift.max(1, count / 3) }
            .min { ($0.edits, $0.name) < ($1.edits, $1.name) }
        return "is not a known setting" + (near.map { "; did you mean \($0.name)?" } ?? "")
    }

    /// How many characters must be inserted, deleted or replaced to make this text the other one (Levenshtein).
    private func edits(to other: String) -> Int {
        let other = Array(other)
        var row = Array(0...other.count)
        for (line, character) in enumerated() {
            var diagonal = row[0]
            row[0] = line + 1
            for column in other.indices {
                let replaced = diagonal + (character == other[column] ? 0 : 1)
                diagonal = row[column + 1]
                row[column + 1] = Swift.min(replaced, diagonal + 1, row[column] + 1)
            }
        }
        return row[other.count]
    }
}
