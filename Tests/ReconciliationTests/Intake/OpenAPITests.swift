import Encoding
import Foundation
import HTTPTypes
import Hummingbird
import Intake
import Ledger
import Purchases
import Service
import Settings
import Support
import TestServers
import Testing
import Yams

/// Goal: deploy/openapi.yaml describes the routes and answers of the program. Method: the file is compared with the
/// routes that an ingest server registers, with the values of the enums, and with the codes in the sources.
@Suite(.migratedDatabase) struct OpenAPITests {
    private static let checkout = URL(filePath: #filePath).deletingLastPathComponent().deletingLastPathComponent()
        .deletingLastPathComponent().deletingLastPathComponent()

    private let file: Node

    init() throws {
        let text = try String(contentsOf: Self.checkout.appending(path: "deploy/openapi.yaml"), encoding: .utf8)
        let node = try Yams.compose(yaml: text)
        file = try #require(node)
    }

    /// The node at this place of the file.
    private func node(_ path: String...) throws -> Node {
        var node = file
        for key in path { node = try #require(node[key], "there is no \(path)") }
        return node
    }

    private func words(_ path: String...) throws -> [String] {
        var node = file
        for key in path { node = try #require(node[key], "there is no \(path)") }
        return node.array().compactMap(\.string)
    }

    /// The values of the discriminator that tells the schemas of a choice apart.
    private func kinds(of schema: String) throws -> Set<String> {
        let mapping = try #require(try node("components", "schemas", schema, "discriminator", "mapping").mapping)
        return Set(mapping.compactMap { key, _ in key.string })
    }

    // MARK: Routes

    /// Records routes instead of serving them.
    private final class ServedRoutes: RouteTable {
        struct Route {
            let method: String
            let path: String
            let parameters: [String]
            var storesPurchases = false

            /// As `GET /v1/receipts/{id}?wait`, the query parameters in alphabetical order.
            var name: String {
                "\(method) \(path)" + (parameters.isEmpty ? "" : "?" + parameters.sorted().joined(separator: "&"))
            }
        }

        private(set) var routes: [Route] = []

        func serve(_ path: RouterPath, _ endpoints: [HTTPRequest.Method: Endpoint]) {
            routes += endpoints.map { method, endpoint in
                Route(
                    method: method.rawValue, path: path.description, parameters: endpoint.parameters,
                    storesPurchases: endpoint.storesPurchases)
            }
        }
    }

    /// The names of the query parameters that an operation describes, by itself or by reference.
    private func queryParameters(_ operation: Node) throws -> [String] {
        try (operation["parameters"]?.array() ?? []).compactMap { parameter in
            var described = parameter
            if let reference = parameter["$ref"]?.string, let name = reference.split(separator: "/").last {
                described = try node("components", "parameters", String(name))
            }
            return described["in"]?.string == "query" ? described["name"]?.string : nil
        }
    }

    @Test("The paths, methods and query parameters of the file are those that ingest serves, health and metrics too")
    func routes() async throws {
        let methods: Set<String> = ["get", "put", "post", "delete", "options", "head", "patch", "trace"]
        var described: Set<String> = []
        let paths = try #require(try node("paths").mapping)
        for (path, item) in paths {
            let members = try #require(item.mapping)
            for (member, operation) in members {
                guard let path = path.string, let method = member.string, methods.contains(method) else { continue }
                let route = ServedRoutes.Route(
                    method: method.uppercased(), path: path, parameters: try queryParameters(operation))
                described.insert(route.name)
            }
        }
        let table = ServedRoutes()
        try await RunningIntake.run { intake in intake.server.addRoutes(to: table) }
        let served = Set(table.routes.map(\.name))
        #expect(described.subtracting(served).sorted() == [], "in the file alone")
        #expect(served.subtracting(described).sorted() == [], "in the program alone")
    }

    @Test("An unknown and a repeated query parameter are refused and named, on every route that stores no purchase")
    func strangeParameters() async throws {
        let served = ServedRoutes()
        try await RunningIntake.run { intake in
            intake.server.addRoutes(to: served)
            for route in served.routes where !route.storesPurchases {
                let path = route.path.replacing("{id}", with: UUID().uuidString)
                    .replacing("{token}", with: UUID().uuidString)
                let strange = try await intake.send(route.method, path + "?&colour=red")
                #expect(strange.status == 400 && strange["code"] == .string("bad_parameter"), "\(route.name)")
                #expect(strange["field"] == .string("colour"), "\(route.name): \(strange.text)")
                for name in route.parameters {
                    let twice = try await intake.send(route.method, path + "?\(name)=1&\(name)=1")
                    #expect(twice.status == 400 && twice["field"] == .string(name), "\(route.name): \(twice.text)")
                }
            }
        }
    }

    // MARK: Words

    @Test(
        "The enum values and codes of the file are those of the program",
        arguments: [
            ("Limit", rawValues(Limit.self)),
            ("Reason", rawValues(Reason.self)),
            ("EventType", rawValues(EventType.self)),
            ("ReceiptState", rawValues(ReceiptState.self)),
            ("BindingSource", rawValues(BindingSource.self)),
            ("MatchReason", rawValues(MatchReason.self)),
            ("ProofKind", rawValues(Proof.Kind.self)),
            ("Repair", rawValues(FieldRepair.Kind.self)),
            ("Lane", rawValues(Lane.self)),
            ("OrderState", rawValues(OrderView.State.self)),
            ("ReportKind", rawValues(ClientReport.Kind.self)),
            ("TokenSource", rawValues(UserToken.Source.self)),
            ("BonusPeriod", rawValues(Catalogue.Bonus.Once.self)),
            ("AppleProductType", rawValues(Transaction.Kind.self)),
            ("Actor", rawValues(NextStep.Actor.self)),
            ("Role", rawValues(Health.Role.self)),
            ("ReadinessStatus", rawValues(Health.Report.Status.self)),
            ("EventType", rawValues(EventType.self)),
        ] as [(String, [String])])
    func enums(_ schema: String, _ values: [String]) throws {
        let words = try words("components", "schemas", schema, "enum")
        #expect(words.sorted() == values.sorted())
    }

    @Test("Types of products, states of a timeline, its lines and the events are those that have a schema")
    func kinds() throws {
        let types = try words("components", "schemas", "ProductType", "enum")
        #expect(types.sorted() == Transaction.Kind.allCases.map(\.settingName).sorted())
        let states = try words("components", "schemas", "Timeline", "properties", "state", "enum")
        #expect(states.sorted() == (rawValues(ReceiptState.self) + ["ordered", "unclaimed"]).sorted())
        let lines = try kinds(of: "TimelineEntry")
        #expect(lines.sorted() == rawValues(TimelineEntry.What.self).sorted())
        let events = try kinds(of: "Event")
        #expect(events.sorted() == rawValues(EventType.self).sorted())
    }

    @Test("B8: an event is described by the envelope and by the newest schema of its body")
    func eventSchemas() throws {
        for type in EventType.allCases {
            let place = try node("components", "schemas", "Event", "discriminator", "mapping", type.rawValue).string
            let name = try #require(place?.split(separator: "/").last, "\(type.rawValue)")
            let schema = try node("components", "schemas", String(name))
            let envelope = schema["allOf"]?.array().compactMap { $0["$ref"]?.string }
            #expect(envelope == ["events/event.1.json"], "\(type.rawValue)")
            #expect(schema["properties"]?["type"]?["const"]?.string == type.rawValue)
            #expect(schema["properties"]?["data"]?["$ref"]?.string == "events/" + type.schemaFile)
            let required = (schema["required"]?.array() ?? []).compactMap(\.string)
            let named =
                (type.namesUser ? ["userId"] : []) + (type.namesTransaction ? ["transactionId"] : [])
                + (type.namesReceipt ? ["receiptId"] : [])
            #expect(required == named, "\(type.rawValue)")
        }
    }

    @Test("The codes of the file are those of the program, and its table explains each of them")
    func codes() throws {
        let codes = try words("components", "schemas", "ProblemCode", "enum")
        #expect(codes.sorted() == rawValues(Problem.Code.self).sorted())
        let description = try #require(try node("info", "description").string)
        let explained = description.matches(of: #/\| \d{3} \| `(\w+)` \|/#).map { String($0.1) }
        #expect(explained.sorted() == codes.sorted())
    }

    // MARK: Schemas

    @Test("An object of the file takes no other members, but where its head says so")
    func closed() throws {
        let open: Set<String> = [
            "ReceiptRequest", "BatchRequest", "OrderRequest", "PaymentRequest", "ReportRequest", "InstallationRequest",
            "MergeRequest", "ConsentRequest", "ConsumptionRequest", "FeedCursorRequest", "HandOutRequest",
            "DigestRequest", "ReplayRequest", "NotificationRequest", "NotificationV1Request",
            "answer",
            "Target", "TargetRequest", "Client", "device", "details", "signedTransaction", "receipt",
        ]
        var met: Set<String> = []
        func visit(_ node: Node, _ name: String) {
            for element in node.array() { visit(element, name) }
            guard let mapping = node.mapping else { return }
            #expect(!mapping.isEmpty, "\(name) says nothing")
            let type = node["type"]
            let types = [type?.string].compactMap(\.self) + (type?.array() ?? []).compactMap(\.string)
            if types.contains("object") {
                let isOpen = node["additionalProperties"]?.bool
                #expect(isOpen == open.contains(name), "\(name)")
                if isOpen == true { met.insert(name) }
            }
            for (key, value) in mapping { visit(value, key.string ?? name) }
        }
        visit(file, "")
        #expect(met == open)
    }
}

private func rawValues<Word: CaseIterable & RawRepresentable>(_ type: Word.Type) -> [String]
where Word.RawValue == String {
    Word.allCases.map(\.rawValue)
}
