import Foundation
import Yams

/// A setting that is missing, unknown or not what it should be. The error names the key and never shows a value.
package struct ConfigurationError: Error, CustomStringConvertible, Equatable {
    /// Where a file says it: `makegood.yaml:12:5`. Line and column count from 1, columns by Unicode scalars.
    package struct Place: Sendable, Equatable, CustomStringConvertible {
        package let file: String
        package let line: Int
        package let column: Int

        package init(file: String, line: Int, column: Int) {
            self.file = file
            self.line = line
            self.column = column
        }

        package var description: String { "\(file):\(line):\(column)" }
    }

    /// `MAKEGOOD_HTTP_PORT`, or `apps[0].products[2].goods`, or `(file)` for a file as a whole.
    package let key: String
    package let problem: String
    /// Nil for a setting that no file holds, and for an error that shows only when the configuration is put to use.
    package let place: Place?

    package init(key: String, problem: String, place: Place? = nil) {
        self.key = key
        self.problem = problem
        self.place = place
    }

    package var description: String {
        "\(place?.description ?? "configuration"): \(key == Self.file ? "" : "\(key): ")\(problem)"
    }

    /// The key of an error about a file as a whole.
    package static let file = "(file)"
}

/// Reads one YAML mapping strictly: a member that nobody asks for is an error, so that a typo cannot hide.
struct ConfigurationReader {
    /// The file that is read, and the files that it and all its sections name.
    final class Files {
        /// The name of the file that is read, as errors say it.
        let name: String
        var named: [NamedFile] = []
        /// Whether a secret stands in the file itself.
        var holdsSecret = false

        init(name: String) { self.name = name }

        /// - Parameter mark: nil is the beginning of the file.
        func error(_ key: String, _ problem: String, at mark: (line: Int, column: Int)?) -> ConfigurationError {
            ConfigurationError(
                key: key.isEmpty ? ConfigurationError.file : key, problem: problem,
                place: .init(file: name, line: mark?.line ?? 1, column: mark?.column ?? 1))
        }

        func error(_ key: String, _ problem: String, at mark: Mark?) -> ConfigurationError {
            error(key, problem, at: mark.map { ($0.line, $0.column) })
        }
    }

    let files: Files
    private let mapping: [String: (key: Mark?, value: Node)]
    private let path: String
    /// Where the mapping begins.
    private let mark: Mark?
    private var asked: Set<String> = []

    /// Reads the mapping that is the whole file.
    ///
    /// - Parameter name: of the file, as errors say it.
    /// - Throws: for text that is no YAML, at the place where it stops to be YAML, and for YAML that is no mapping.
    init(yaml: String, name: String) throws(ConfigurationError) {
        let files = Files(name: name)
        let root: Node?
        do {
            root = try Yams.compose(yaml: yaml)
        } catch {
            let (problem, mark) = (error as? YamlError)?.summary ?? ("cannot be read", nil)
            throw files.error("", "is no YAML: \(problem)", at: mark)
        }
        try self.init(root ?? "", path: "", files: files)
    }

    private init(_ node: Node, path: String, files: Files) throws(ConfigurationError) {
        self.path = path
        self.files = files
        mark = node.mark
        guard case .mapping(let mapping) = node else { throw files.error(path, "must be a mapping", at: node.mark) }
        var entries: [String: (key: Mark?, value: Node)] = [:]
        for (key, value) in mapping {
            guard let name = key.string else { throw files.error(path, "has a key that is no text", at: key.mark) }
            entries[name] = (key.mark, value)
        }
        self.mapping = entries
    }

    /// Throws for a member that nobody asked for, and names a known member that is spelled nearly so.
    func finish() throws(ConfigurationError) {
        if let unknown = Set(mapping.keys).subtracting(asked).sorted().first {
            throw error(unknown, unknown.unknownSetting(among: asked))
        }
    }

    /// The error about a member: at its key, or where it is missing, at the beginning of the mapping.
    func error(_ key: String, _ problem: String) -> ConfigurationError {
        files.error(keyPath(key), problem, at: mapping[key]?.key ?? mark)
    }

    func keyPath(_ key: String) -> String { path.isEmpty ? key : "\(path).\(key)" }

    private mutating func node(_ key: String) -> Node? {
        asked.insert(key)
        guard let node = mapping[key]?.value, node.null == nil else { return nil }
        return node
    }

    mutating func text(_ key: String) throws(ConfigurationError) -> String? {
        guard let node = node(key) else { return nil }
        guard case .scalar(let scalar) = node, !scalar.string.isEmpty else { throw error(key, "must be a text") }
        return scalar.string
    }

    mutating func requiredText(_ key: String) throws(ConfigurationError) -> String {
        guard let text = try text(key) else { throw error(key, "is missing") }
        return text
    }

    mutating func integer(_ key: String, in range: ClosedRange<Int>) throws(ConfigurationError) -> Int? {
        guard let node = node(key) else { return nil }
        guard let value = node.int, range.contains(value) else {
            throw error(key, "must be a whole number from \(range.lowerBound) to \(range.upperBound)")
        }
        return value
    }

    mutating func boolean(_ key: String) throws(ConfigurationError) -> Bool? {
        guard let node = node(key) else { return nil }
        guard let value = node.bool else { throw error(key, "must be true or false") }
        return value
    }

    /// A point in time, RFC 3339.
    mutating func date(_ key: String) throws(ConfigurationError) -> Date? {
        guard let text = try text(key) else { return nil }
        guard let date = try? Date.ISO8601FormatStyle().parse(text) else {
            throw error(key, "must be a time such as 2026-03-01T00:00:00Z")
        }
        return date
    }

    /// `90s`, `10m`, `48h`, `7d`, or `0`.
    mutating func duration(_ key: String) throws(ConfigurationError) -> Duration? {
        guard let text = try text(key) else { return nil }
        guard let duration = Duration(setting: text) else { throw error(key, "must be a duration such as 90s or 7d") }
        return duration
    }

    mutating func word<Word: RawRepresentable & CaseIterable>(_ key: String) throws(ConfigurationError) -> Word?
    where Word.RawValue == String {
        guard let text = try text(key) else { return nil }
        guard let word = Word(rawValue: text) else {
            throw error(key, "must be one of \(Word.allCases.map(\.rawValue).joined(separator: ", "))")
        }
        return word
    }

    /// Words of a closed list. Nil: the member is left out.
    mutating func words<Word: RawRepresentable & CaseIterable & Hashable>(
        _ key: String
    ) throws(ConfigurationError) -> Set<Word>? where Word.RawValue == String {
        guard let texts = try texts(key) else { return nil }
        var words: Set<Word> = []
        for text in texts {
            guard let word = Word(rawValue: text) else {
                throw error(key, "must be of \(Word.allCases.map(\.rawValue).joined(separator: ", "))")
            }
            words.insert(word)
        }
        return words
    }

    mutating func texts(_ key: String) throws(ConfigurationError) -> [String]? {
        guard let node = node(key) else { return nil }
        // `"*"` may stand alone.
        if case .scalar(let scalar) = node { return [scalar.string] }
        guard case .sequence(let sequence) = node else { throw error(key, "must be a list of texts") }
        var texts: [String] = []
        for (index, node) in sequence.enumerated() {
            guard case .scalar(let scalar) = node, !scalar.string.isEmpty else {
                throw files.error("\(keyPath(key))[\(index)]", "must be a text", at: node.mark)
            }
            texts.append(scalar.string)
        }
        return texts
    }

    mutating func section(_ key: String) throws(ConfigurationError) -> ConfigurationReader? {
        guard let node = node(key) else { return nil }
        return try ConfigurationReader(node, path: keyPath(key), files: files)
    }

    mutating func sections(_ key: String) throws(ConfigurationError) -> [ConfigurationReader]? {
        guard let node = node(key) else { return nil }
        guard case .sequence(let sequence) = node else { throw error(key, "must be a list") }
        var sections: [ConfigurationReader] = []
        for (index, node) in sequence.enumerated() {
            sections.append(try ConfigurationReader(node, path: "\(keyPath(key))[\(index)]", files: files))
        }
        return sections
    }

    /// A secret: as `key`, or in the file that `keyFile` names, or in the environment variable that `keyEnv` names.
    mutating func secret(_ key: String, relativeTo directory: URL) throws(ConfigurationError) -> String? {
        let given = try text(key)
        let file = try text("\(key)File")
        let variable = try text("\(key)Env")
        switch (given, file, variable) {
        case (nil, nil, nil): return nil
        case (let given?, nil, nil):
            files.holdsSecret = true
            return given
        case (nil, let file?, nil):
            let bytes = try readFile(file, key: "\(key)File", relativeTo: directory, holdsSecret: true)
            return String(decoding: bytes, as: UTF8.self).trimmingCharacters(in: .whitespacesAndNewlines)
        case (nil, nil, let variable?):
            guard let value = ProcessInfo.processInfo.environment[variable], !value.isEmpty else {
                throw error("\(key)Env", "names an environment variable that is not set")
            }
            return value
        default: throw error(key, "is given more than once (\(key), \(key)File, \(key)Env)")
        }
    }

    func readFile(
        _ name: String, key: String, relativeTo directory: URL, holdsSecret: Bool = false
    ) throws(ConfigurationError) -> [UInt8] {
        // Not `relativeTo:`, which takes a directory without a final slash for a file.
        let url = name.hasPrefix("/") ? URL(filePath: name) : directory.appending(path: name)
        guard let data = try? Data(contentsOf: url) else { throw error(key, "names a file that cannot be read") }
        files.named.append(
            NamedFile(key: keyPath(key), path: url.path(percentEncoded: false), holdsSecret: holdsSecret))
        return Array(data)
    }
}

extension YamlError {
    /// The problem in a few words, which never show a value of the file, and its place where YAML names one.
    fileprivate var summary: (problem: String, mark: (line: Int, column: Int)?) {
        switch self {
        case .scanner(let context, let problem, let mark, _), .parser(let context, let problem, let mark, _),
            .composer(let context, let problem, let mark, _):
            return ((context.map { "\($0.text), " } ?? "") + problem, (mark.line, mark.column))
        case .duplicatedKeysInMapping(let keys, let context):
            return (
                "a mapping has a key twice: \(keys.joined(separator: ", "))", (context.mark.line, context.mark.column)
            )
        case .reader(let problem, let offset, _, let yaml):
            let lines = yaml.prefix(offset ?? 0).split(omittingEmptySubsequences: false, whereSeparator: \.isNewline)
            return (problem, (lines.count, (lines.last?.unicodeScalars.count ?? 0) + 1))
        default: return ("cannot be read", nil)
        }
    }
}

extension Duration {
    /// Nil for anything but a whole number with one of the units s, m, h, d; a bare `0` is allowed.
    init?(setting: String) {
        if setting == "0" {
            self = .zero
            return
        }
        let units: [Character: Int] = ["s": 1, "m": 60, "h": 3600, "d": 86_400]
        let digits = setting.dropLast()
        guard let unit = setting.last.flatMap({ units[$0] }), digits.utf8.allSatisfy({ (0x30...0x39).contains($0) }),
            let count = Int(digits), count <= 1_000_000
        else { return nil }
        self = .seconds(count * unit)
    }
}
