package import Encoding
import Foundation

/// A JSON schema (draft 2020-12), as far as the files of deploy/events use the language.
///
/// A keyword that is not known here is refused, so that no file says what nobody checks. `$ref` leads to `$defs` of the
/// same file, and `format` is checked. An integer is a number without a fraction and without an exponent.
package struct JSONSchema: Sendable {
    /// Why a text is no schema that can be checked here: the place and what is wrong there.
    package struct Invalid: Error, Equatable {
        package let text: String
    }

    private let root: JSONValue

    package init(_ root: JSONValue) throws(Invalid) {
        self.root = root
        try checkSchema(root, at: "#")
    }

    /// What does not fit, each with its place in the value, as `#/goods/0/amount: is missing`. Empty: the value fits.
    package func faults(of value: JSONValue) -> [String] {
        var faults: [String] = []
        check(value, by: root, at: "#", &faults)
        return faults
    }

    // MARK: The schema

    private static let texts: Set<String> = ["$schema", "title", "description"]
    private static let sizes: Set<String> = [
        "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "minimum", "maximum",
    ]
    private static let types: Set<String> = [
        "object", "array", "string", "integer", "number", "boolean", "null",
    ]
    private static let formats: Set<String> = ["uuid", "date-time"]

    private func checkSchema(_ schema: JSONValue, at place: String) throws(Invalid) {
        guard case .object(let members) = schema else { throw Invalid(text: "\(place): is no object") }
        for member in members {
            let place = "\(place)/\(member.key)"
            guard try isRight(member, of: schema, at: place) else {
                throw Invalid(text: "\(place): \(member.value.text) is not taken here")
            }
        }
    }

    /// Whether a keyword is known, and its value is one that the keyword takes.
    private func isRight(_ member: JSONValue.Member, of schema: JSONValue, at place: String) throws(Invalid) -> Bool {
        switch member.key {
        case _ where Self.texts.contains(member.key): member.value.string != nil
        case _ where Self.sizes.contains(member.key): member.value.integer != nil
        case "$defs", "properties": try areSchemas(member.value, at: place)
        case "items": try isSchema(member.value, at: place)
        case "$ref": definition(member.value) != nil
        case "type": Self.types.isSuperset(of: member.value.words ?? [""])
        case "required":
            (member.value.words ?? [""]).allSatisfy { schema["properties"]?[$0] != nil }
        case "enum": member.value.elements?.isEmpty == false
        case "const": true
        case "additionalProperties": member.value.bool != nil
        case "pattern": member.value.string.flatMap { try? Regex($0) } != nil
        case "format": Self.formats.contains(member.value.string ?? "")
        default: false
        }
    }

    private func areSchemas(_ value: JSONValue, at place: String) throws(Invalid) -> Bool {
        guard case .object(let members) = value else { return false }
        for member in members { _ = try isSchema(member.value, at: "\(place)/\(member.key)") }
        return true
    }

    private func isSchema(_ value: JSONValue, at place: String) throws(Invalid) -> Bool {
        try checkSchema(value, at: place)
        return true
    }

    private func definition(_ reference: JSONValue) -> JSONValue? {
        guard let text = reference.string, text.hasPrefix("#/$defs/") else { return nil }
        return root["$defs"]?[String(text.dropFirst("#/$defs/".count))]
    }

    // MARK: A value

    private func check(_ value: JSONValue, by schema: JSONValue, at place: String, _ faults: inout [String]) {
        if let definition = schema["$ref"].flatMap(definition) {
            check(value, by: definition, at: place, &faults)
        }
        if let types = schema["type"]?.words, !types.contains(where: value.isOf) {
            faults.append("\(place): is no \(types.joined(separator: " or "))")
            return
        }
        if let words = schema["enum"]?.elements, !words.contains(value) {
            faults.append("\(place): \(value.text) is not listed")
        }
        if let word = schema["const"], word != value { faults.append("\(place): is not \(word.text)") }
        switch value {
        case .string(let text): check(text, by: schema, at: place, &faults)
        case .number(let text):
            let number = Double(text) ?? .nan
            if let bound = schema["minimum"]?.integer, !(Int(text).map { $0 >= bound } ?? (number >= Double(bound))) {
                faults.append("\(place): \(text) is below \(bound)")
            }
            if let bound = schema["maximum"]?.integer, !(Int(text).map { $0 <= bound } ?? (number <= Double(bound))) {
                faults.append("\(place): \(text) is above \(bound)")
            }
        case .array(let elements):
            Self.check(elements.count, schema["minItems"], schema["maxItems"], "elements", at: place, &faults)
            guard let items = schema["items"] else { return }
            for (index, element) in elements.enumerated() {
                check(element, by: items, at: "\(place)/\(index)", &faults)
            }
        case .object(let members): check(members, of: value, by: schema, at: place, &faults)
        case .null, .bool: break
        }
    }

    private func check(_ text: String, by schema: JSONValue, at place: String, _ faults: inout [String]) {
        let length = text.unicodeScalars.count
        Self.check(length, schema["minLength"], schema["maxLength"], "characters", at: place, &faults)
        if let pattern = schema["pattern"]?.string, let regex = try? Regex(pattern), !text.contains(regex) {
            faults.append("\(place): does not match \(pattern)")
        }
        let isWell =
            switch schema["format"]?.string {
            case "uuid": UUID(uuidString: text) != nil
            case "date-time": Date(rfc3339: text) != nil
            default: true
            }
        if !isWell { faults.append("\(place): is no \(schema["format"]?.string ?? "")") }
    }

    private func check(
        _ members: [JSONValue.Member], of value: JSONValue, by schema: JSONValue, at place: String,
        _ faults: inout [String]
    ) {
        Self.check(members.count, schema["minProperties"], schema["maxProperties"], "members", at: place, &faults)
        for name in schema["required"]?.words ?? [] where value[name] == nil {
            faults.append("\(place)/\(name): is missing")
        }
        var seen: Set<[UInt8]> = []
        for member in members {
            let place = "\(place)/\(member.key)"
            if !seen.insert(Array(member.key.utf8)).inserted { faults.append("\(place): is there twice") }
            if let property = schema["properties"]?[member.key] {
                check(member.value, by: property, at: place, &faults)
            } else if schema["additionalProperties"]?.bool == false {
                faults.append("\(place): is not described")
            }
        }
    }

    private static func check(
        _ count: Int, _ min: JSONValue?, _ max: JSONValue?, _ what: String, at place: String, _ faults: inout [String]
    ) {
        if let min = min?.integer, count < min { faults.append("\(place): has \(count) \(what), \(min) at least") }
        if let max = max?.integer, count > max { faults.append("\(place): has \(count) \(what), \(max) at most") }
    }
}

extension JSONValue {
    fileprivate var string: String? { if case .string(let text) = self { text } else { nil } }
    fileprivate var bool: Bool? { if case .bool(let bool) = self { bool } else { nil } }
    fileprivate var integer: Int? { if case .number(let text) = self { Int(text) } else { nil } }
    fileprivate var elements: [JSONValue]? { if case .array(let elements) = self { elements } else { nil } }
    /// One word, or several; nil for anything else.
    fileprivate var words: [String]? {
        if let string { return [string] }
        let words = elements?.compactMap(\.string)
        return words?.count == elements?.count ? words : nil
    }

    /// Whether the value has a type of JSON Schema.
    fileprivate func isOf(_ type: String) -> Bool {
        switch self {
        case .null: type == "null"
        case .bool: type == "boolean"
        case .number: type == "number" || type == "integer" && integer != nil
        case .string: type == "string"
        case .array: type == "array"
        case .object: type == "object"
        }
    }
}
