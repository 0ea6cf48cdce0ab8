package import Encoding
package import Foundation
import Purchases

/// The schemas of deploy/events, and the check of an event by them.
package struct EventSchemas: Sendable {
    package static let checkout = URL(filePath: #filePath).deletingLastPathComponent().deletingLastPathComponent()
        .deletingLastPathComponent()

    /// The schemas as JSON, by the names of their files.
    package let files: [String: JSONValue]
    private let envelope: JSONSchema
    private let bodies: [EventType: JSONSchema]

    /// Reads the directory.
    private init() throws {
        let directory = Self.checkout.appending(path: "deploy/events")
        var files: [String: JSONValue] = [:]
        for url in try FileManager.default.contentsOfDirectory(at: directory, includingPropertiesForKeys: nil) {
            files[url.lastPathComponent] = try JSONValue(parsing: Array(Data(contentsOf: url)))
        }
        self.files = files
        func schema(_ name: String) throws -> JSONSchema {
            guard let file = files[name] else { throw JSONSchema.Invalid(text: "deploy/events has no \(name)") }
            do {
                return try JSONSchema(file)
            } catch {
                throw JSONSchema.Invalid(text: "\(name): \(error.text)")
            }
        }
        envelope = try schema("event.1.json")
        bodies = Dictionary(
            uniqueKeysWithValues: try EventType.allCases.map { ($0, try schema($0.schemaFile)) })
    }

    private static let read = Result { try EventSchemas() }

    /// - Throws: if a file is missing, or is no schema that ``JSONSchema`` takes.
    package static func all() throws -> EventSchemas { try read.get() }

    /// What does not fit in the body of an event of this type. Empty: the body fits.
    package func faults(ofBody body: JSONValue, of type: String) -> [String] {
        guard let schema = EventType(rawValue: type).flatMap({ bodies[$0] }) else { return ["\(type): is no type"] }
        return schema.faults(of: body).map { "\(type) \($0)" }
    }

    /// What does not fit in an event of the feed. Empty: the event fits.
    package func faults(of event: JSONValue) -> [String] {
        var faults = envelope.faults(of: event)
        guard case .string(let type)? = event["type"], let data = event["data"] else { return faults }
        if let type = EventType(rawValue: type) {
            let ids = [
                ("userId", type.namesUser), ("transactionId", type.namesTransaction), ("receiptId", type.namesReceipt),
            ]
            for (name, isNamed) in ids where (event[name] != nil) != isNamed {
                faults.append("\(type.rawValue) #/\(name): \(isNamed ? "is missing" : "is not for this type")")
            }
        }
        return faults + self.faults(ofBody: data, of: type)
    }
}
