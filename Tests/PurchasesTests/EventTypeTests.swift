import Encoding
import Foundation
import Purchases
import TestSchemas
import Testing

/// Goal: the table of event types, the schemas in deploy/events, the page deploy/events.md and the changelog say the
/// same (B8). Method: each is read and compared with the table, both ways.
@Suite struct EventTypeTests {
    private let schemas: EventSchemas

    init() throws { schemas = try EventSchemas.all() }

    private static func text(_ path: String) throws -> String {
        try String(contentsOf: EventSchemas.checkout.appending(path: path), encoding: .utf8)
    }

    private static func members(_ value: JSONValue?) -> [JSONValue.Member] {
        if case .object(let members)? = value { members } else { [] }
    }

    private static func words(_ value: JSONValue?) -> [String] {
        guard case .array(let elements)? = value else { return [] }
        return elements.compactMap { if case .string(let word) = $0 { word } else { nil } }
    }

    /// The words that a member of the newest schema of a type may be.
    private func words(_ type: EventType, _ member: String) -> Set<String> {
        Set(Self.words(schemas.files[type.schemaFile]?["properties"]?[member]?["enum"]))
    }

    @Test("each number of each type's schema has a file, and no file is of another type")
    func files() throws {
        let expected = EventType.allCases.flatMap { type in (1...type.schema).map { "\(type.rawValue).\($0).json" } }
        #expect(Set(schemas.files.keys) == Set(expected + ["event.1.json"]))
        for (name, file) in schemas.files {
            #expect(file["$schema"] == .string("https://json-schema.org/draft/2020-12/schema"), "\(name)")
            let type = try #require(name.wholeMatch(of: #/(.+)\.\d+\.json/#), "\(name)").1
            #expect(file["title"] == .string(String(type)), "\(name)")
        }
    }

    @Test("each member of each schema is described, each text and number has bounds, and each object is closed")
    func members() {
        /// The members and what they hold, at any depth.
        func visit(_ schema: JSONValue, _ place: String) {
            if schema["$ref"] == nil {
                #expect(schema["type"] != nil, "\(place)")
                #expect(
                    schema["type"] != .string("integer") || schema["minimum"] != nil && schema["maximum"] != nil,
                    "\(place)")
                #expect(
                    schema["type"] != .string("string") || schema["maxLength"] != nil || schema["enum"] != nil
                        || schema["format"] != nil, "\(place)")
            }
            if schema["type"] == .string("object") {
                let isOpen = place.hasSuffix("$defs/target") || place == "event.1.json/data"
                #expect(schema["additionalProperties"] == .bool(isOpen), "\(place)")
            }
            if let items = schema["items"] { visit(items, place + "/items") }
            for list in ["properties", "$defs"] {
                for member in Self.members(schema[list]) {
                    let place = list == "$defs" ? "\(place)/$defs/\(member.key)" : "\(place)/\(member.key)"
                    if case .string(let text)? = member.value["description"] {
                        #expect(text.count > 8 && text.hasSuffix("."), "\(place): \(text)")
                    } else {
                        Issue.record("\(place) is not described")
                    }
                    visit(member.value, place)
                }
            }
        }
        for (name, file) in schemas.files {
            if case .string(let text)? = file["description"] {
                #expect(text.hasSuffix("."), "\(name)")
            } else {
                Issue.record("\(name) is not described")
            }
            visit(file, name)
        }
    }

    @Test("what several schemas define under one name is one thing")
    func definitions() {
        var known: [String: JSONValue] = [:]
        for (name, file) in schemas.files {
            for member in Self.members(file["$defs"]) {
                #expect(known[member.key] == nil || known[member.key] == member.value, "\(name) \(member.key)")
                known[member.key] = member.value
            }
        }
        #expect(Set(known.keys) == ["commitment", "goods", "nextOffer", "offer", "target"])
    }

    @Test("the words of the schemas are those of the program")
    func words() {
        #expect(words(.purchaseGranted, "bindingSource") == Set(BindingSource.allCases.map(\.rawValue)))
        let ends = Set(RevocationEntry.Reason.allCases.map(\.rawValue))
        #expect(words(.purchaseRevoked, "reason") == ends.union(Reason.takingBack.map(\.rawValue)))
        #expect(words(.purchaseReinstated, "reason") == ends)
        #expect(
            words(.endpointExhausted, "reason") == Set(EndpointHealth.Suspension.allCases.map(\.rawValue)))
        let states = Set(SubscriptionState.allCases.map(\.rawValue))
        for type in [EventType.subscriptionChanged, .priceConsent, .entitlementChanged] {
            #expect(words(type, "state") == states, "\(type.rawValue)")
        }
        let told: [(EventType, Set<String>)] = [
            (.subscriptionStarted, ["active"]), (.subscriptionRenewed, ["active"]),
            (.subscriptionRecovered, ["active"]),
            (.subscriptionInGrace, ["in_grace"]), (.subscriptionInRetry, ["in_retry"]),
            (.subscriptionExpired, ["expired", "replaced"]), (.subscriptionRevoked, ["revoked"]),
        ]
        for (type, states) in told { #expect(words(type, "state") == states, "\(type.rawValue)") }
        let known = Set([Transaction.production, Transaction.sandbox] + Transaction.unsignedEnvironments)
        for type in EventType.allCases {
            let environments = words(type, "environment")
            #expect(environments.isEmpty || environments == known, "\(type.rawValue)")
        }
    }

    @Test("the page lists each type once, under what it is about, with the version that brought it and its schema")
    func page() throws {
        let headings: [EventType.Subject: String] = [
            .purchase: "Purchases", .chain: "Subscriptions", .ownership: "Owners",
            .order: "Orders of other ways of payment", .receipt: "Receipts",
            .endpoint: "Endpoints",
        ]
        var subject: EventType.Subject?
        var found: [String] = []
        for line in try Self.text("deploy/events.md").split(separator: "\n") {
            if line.hasPrefix("## ") { subject = headings.first { $0.value == line.dropFirst(3) }?.key }
            guard
                let row = line.firstMatch(
                    of: #/^\| \[`([a-z._]+)`\]\(events/([a-z._0-9]+)\) \| ([0-9.]+) \| .+ \| .+ \|$/#)
            else {
                #expect(!line.hasPrefix("| ["), "\(line)")
                continue
            }
            let type = try #require(EventType(rawValue: String(row.1)), "\(row.1)")
            #expect(row.2 == type.schemaFile[...] && row.3 == type.since[...], "\(line)")
            #expect(type.subject == subject, "\(line)")
            found.append(type.rawValue)
        }
        #expect(found.sorted() == EventType.allCases.map(\.rawValue).sorted())
        #expect(Set(headings.keys) == Set(EventType.Subject.allCases))
    }

    @Test("the version that brought a type is one of the changelog")
    func versions() throws {
        let known = try Self.text("deploy/changelog.md").matches(of: #/(?m)^## (\d+\.\d+\.\d+)/#).map { String($0.1) }
        #expect(!known.isEmpty)
        for type in EventType.allCases { #expect(known.contains(type.since), "\(type.rawValue)") }
    }

    @Test("no source but the table spells a type")
    func literals() throws {
        let types = Set(EventType.allCases.map(\.rawValue))
        // The security log has words of its own.
        let spared: Set<String> = ["EventType.swift", "SecurityLog.swift"]
        let sources = EventSchemas.checkout.appending(path: "Sources")
        let files = try #require(FileManager.default.enumerator(at: sources, includingPropertiesForKeys: nil))
        var count = 0
        for case let url as URL in files where url.pathExtension == "swift" && !spared.contains(url.lastPathComponent) {
            count += 1
            let quoted = try String(contentsOf: url, encoding: .utf8)
                .components(separatedBy: CharacterSet(charactersIn: "\"'"))
            #expect(types.isDisjoint(with: quoted), "\(url.lastPathComponent)")
        }
        #expect(count > 300)
    }
}

/// Goal: the check of events by their schemas refuses what does not fit. Method: a schema with each keyword, values that
/// fit and values that do not; schemas that say what nobody checks.
@Suite struct JSONSchemaTests {
    private static func value(_ text: String) throws -> JSONValue { try JSONValue(parsing: Array(text.utf8)) }

    private static let schema = """
        {"$schema": "s", "title": "t", "description": "d", "type": "object", "required": ["n"], "minProperties": 1,
         "maxProperties": 3, "additionalProperties": false,
         "properties": {
           "n": {"type": "integer", "minimum": 1, "maximum": 9223372036854775807},
           "x": {"type": ["number", "null"]}, "b": {"type": "boolean", "const": true},
           "w": {"type": "string", "enum": ["one", "two"]},
           "t": {"type": "string", "minLength": 2, "maxLength": 3, "pattern": "^[a-z]+$"},
           "u": {"type": "string", "format": "uuid"}, "d": {"type": "string", "format": "date-time"},
           "l": {"type": "array", "minItems": 1, "maxItems": 2, "items": {"$ref": "#/$defs/o"}},
           "open": {"type": "object", "additionalProperties": true}},
         "$defs": {"o": {"type": "object", "required": ["k"], "properties": {"k": {"type": "string"}},
           "additionalProperties": false}}}
        """

    @Test(
        "each keyword refuses what it must, and names the place",
        arguments: [
            (#"{"n": 1}"#, []), (#"{"n": 9223372036854775807, "x": 1.5, "b": true}"#, []),
            (#"{"n": 1, "x": null, "w": "two"}"#, []), (#"{"n": 1, "t": "ab"}"#, []),
            (#"{"n": 1, "u": "1b0f3b16-01a1-86e2-ac2d-127ec8406cab", "d": "2026-11-22T10:00:00.000Z"}"#, []),
            (#"{"n": 1, "l": [{"k": ""}, {"k": "x"}], "open": {"any": [1]}}"#, []),
            ("[]", ["#"]), ("{}", ["#", "#/n"]), (#"{"x": 1}"#, ["#/n"]), (#"{"n": 0}"#, ["#/n"]),
            (#"{"n": 1.0}"#, ["#/n"]),
            (#"{"n": 9223372036854775808}"#, ["#/n"]), (#"{"n": "1"}"#, ["#/n"]), (#"{"n": null}"#, ["#/n"]),
            (#"{"n": 1, "n": 2}"#, ["#/n"]), (#"{"n": 1, "z": 1}"#, ["#/z"]), (#"{"n": 1, "x": "1"}"#, ["#/x"]),
            (#"{"n": 1, "b": false}"#, ["#/b"]), (#"{"n": 1, "b": 1}"#, ["#/b"]), (#"{"n": 1, "w": "three"}"#, ["#/w"]),
            (#"{"n": 1, "t": "a"}"#, ["#/t"]), (#"{"n": 1, "t": "abcd"}"#, ["#/t"]), (#"{"n": 1, "t": "AB"}"#, ["#/t"]),
            (#"{"n": 1, "u": "1b0f3b16"}"#, ["#/u"]), (#"{"n": 1, "d": "2026-11-22"}"#, ["#/d"]),
            (#"{"n": 1, "d": "2026-02-30T10:00:00Z"}"#, ["#/d"]), (#"{"n": 1, "l": []}"#, ["#/l"]),
            (#"{"n": 1, "l": [{"k": ""}, {"k": ""}, {"k": ""}]}"#, ["#/l"]), (#"{"n": 1, "l": {}}"#, ["#/l"]),
            (#"{"n": 1, "l": [{}]}"#, ["#/l/0/k"]), (#"{"n": 1, "l": [{"k": 1}]}"#, ["#/l/0/k"]),
            (#"{"n": 1, "l": [{"k": "", "m": ""}]}"#, ["#/l/0/m"]), (#"{"n": 1, "open": []}"#, ["#/open"]),
            (#"{"n": 1, "x": 1, "b": true, "w": "one"}"#, ["#"]),
        ] as [(String, [String])])
    func faults(_ text: String, _ places: [String]) throws {
        let schema = try JSONSchema(try Self.value(Self.schema))
        let faults = schema.faults(of: try Self.value(text))
        #expect(faults.map { String($0.prefix { $0 != ":" }) } == places, "\(faults)")
    }

    @Test(
        "a schema that says what nobody checks is refused",
        arguments: [
            "[]", "true", #"{"oneOf": []}"#, #"{"type": "text"}"#, #"{"type": ["string", 1]}"#, #"{"format": "email"}"#,
            ##"{"$ref": "#/$defs/none"}"##, #"{"$ref": "other.json"}"#, #"{"required": ["a"], "properties": {}}"#,
            #"{"required": ["a"]}"#, #"{"additionalProperties": {}}"#, #"{"items": []}"#, #"{"items": {"allOf": []}}"#,
            #"{"properties": {"a": true}}"#, #"{"properties": []}"#, #"{"$defs": {"a": {"not": {}}}}"#,
            #"{"minimum": "1"}"#, #"{"maxLength": 1.5}"#, #"{"pattern": "("}"#, #"{"enum": []}"#, #"{"enum": "a"}"#,
            #"{"title": 1}"#, #"{"examples": []}"#,
        ])
    func refused(_ text: String) throws {
        let value = try Self.value(text)
        #expect(throws: JSONSchema.Invalid.self) { try JSONSchema(value) }
    }

    @Test(
        "an event of the feed needs its envelope, a known type, the ids of its type, and a body that fits",
        arguments: [
            ("", "", []), (#""type":"ownership.disputed""#, #""type":"ownership.settled""#, ["ownership.settled"]),
            (#""isOwner":true"#, #""isOwner":1"#, ["ownership.disputed #/isOwner"]),
            (#""transactionId":"1","#, "", ["ownership.disputed #/transactionId"]),
            (#""userId":"u1","#, "", ["ownership.disputed #/userId"]),
            (#""appId":"game""#, #""appId":"game","more":1"#, ["#/more"]),
            (
                #""type":"ownership.disputed""#, #""type":"order.paid""#,
                [
                    "order.paid #/transactionId", "order.paid #/receiptId", "order.paid #/orderId",
                    "order.paid #/quantity",
                    "order.paid #/channel", "order.paid #/isOwner",
                ]
            ),
        ] as [(String, String, [String])])
    func events(_ part: String, _ other: String, _ faults: [String]) throws {
        let event = """
            {"id":"1b0f3b16-01a1-86e2-ac2d-127ec8406cab","type":"ownership.disputed","appId":"game","userId":"u1",\
            "transactionId":"1","receiptId":"1b0f3b16-01a1-86e2-ac2d-127ec8406cab","at":"2026-11-22T10:00:00.000Z",\
            "data":{"productId":"coins","isOwner":true}}
            """
        let text = part.isEmpty ? event : event.replacing(part, with: other)
        #expect(part.isEmpty || text != event)
        let found = try EventSchemas.all().faults(of: try Self.value(text))
        #expect(found.map { String($0.prefix { $0 != ":" }) } == faults, "\(found)")
    }
}
