import Foundation
import Yams

/// A setting that is missing, unknown or not what it should be. The error names the key and never shows a value.
package struct ConfigurationError: Error, CustomStringConvertible, Equatable {
    /// `MAKEGOOD_HTTP_PORT`, or `apps[0].products[2].goods`.
    package let key: String
    package let problem: String

    package init(key: String, problem: String) {
        self.key = key
        self.problem = problem
    }

    package var description: String { "configuration: \(key): \(problem)" }
}

/// Reads one YAML mapping strictly: a member that nobody asks for is an error, so that a typo cannot hide.
struct ConfigurationReader {
    /// The files that a file and all its sections name.
    final class Files {
        var named: [NamedFile] = []
        /// Whether a secret stands in the file itself.
        var holdsSecret = false
    }

    let files: Files
    private let mapping: [String: Node]
    private let path: String
    private var asked: Set<String> = []

    init(_ node: Node?, path: String, files: Files = Files()) throws(ConfigurationError) {
        self.path = path
        self.files = files
        guard let node, case .mapping(let mapping) = node else {
            throw ConfigurationError(key: path.isEmpty ? "(file)" : path, problem: "must be a mapping")
        }
        var entries: [String: Node] = [:]
        for (key, value) in mapping {
            guard let name = key.string else {
                throw ConfigurationError(key: path.isEmpty ? "(file)" : path, problem: "has a key that is no text")
            }
            entries[name] = value
        }
        self.mapping = entries
    }

    /// Throws for a member that nobody asked for.
    func finish() throws(ConfigurationError) {
        if let unknown = Set(mapping.keys).subtracting(asked).sorted().first {
            throw error(unknown, "is not a known setting")
        }
    }

    func error(_ key: String, _ problem: String) -> ConfigurationError {
        ConfigurationError(key: keyPath(key), problem: problem)
    }

    func keyPath(_ key: String) -> String { path.isEmpty ? key : "\(path).\(key)" }

    private mutating func node(_ key: String) -> Node? {
        asked.insert(key)
        guard let node = mapping[key], node.null == nil else { return nil }
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

    mutating func texts(_ key: String) throws(ConfigurationError) -> [String]? {
        guard let node = node(key) else { return nil }
        // `"*"` may stand alone.
        if case .scalar(let scalar) = node { return [scalar.string] }
        guard case .sequence(let sequence) = node else { throw error(key, "must be a list of texts") }
        var texts: [String] = []
        for (index, node) in sequence.enumerated() {
            guard case .scalar(let scalar) = node, !scalar.string.isEmpty else {
                throw error("\(key)[\(index)]", "must be a text")
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
