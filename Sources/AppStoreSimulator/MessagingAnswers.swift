import Foundation

/// The retention messages that an app's backend has configured in one environment.
struct MessagingState: Codable, Sendable, Equatable {
    /// How many images, and how many messages, one app may have. Apple's own limits are not known.
    static let itemsMax = 2000

    /// `FULL_SIZE` or `BULLET_POINT` by image identifier.
    var images: [String: String] = [:]
    /// The images that a message shows, by message identifier.
    var messages: [String: [String]] = [:]
    /// Message identifiers by `product/locale`.
    var defaults: [String: String] = [:]
    var realtimeURL: String?
    /// Performance tests: their targets by request identifier.
    var tests: [String: String] = [:]
}

/// The endpoints of retention messaging. Everything that is uploaded is approved at once; a performance test sends
/// nothing and passes.
extension ServerAPI {
    private var lane: DeliveryLane { DeliveryLane(app: app, environment: environment) }

    /// Answers the call by its method and by the part of its path after `v1/messaging/`.
    func messaging() throws(AppleError) -> AppleAnswer {
        switch (call.method, call.pattern) {
        case ("PUT", "image/{id}"): try change { state throws(AppleError) in try upload(imageTo: &state) }
        case ("DELETE", "image/{id}"):
            try change { state throws(AppleError) in
                let id = try identifier(call.id)
                guard state.images[id] != nil else { throw .imageNotFound }
                guard !state.messages.values.contains(where: { $0.contains(id) }) else { throw .imageInUse }
                state.images[id] = nil
            }
        case ("PUT", "message/{id}"): try change { state throws(AppleError) in try upload(messageTo: &state) }
        case ("DELETE", "message/{id}"):
            try change { state throws(AppleError) in
                let id = try identifier(call.id)
                guard state.messages.removeValue(forKey: id) != nil else { throw .messageNotFound }
                state.defaults = state.defaults.filter { $0.value != id }
            }
        case ("PUT", "default/{productId}/{id}"):
            try change { state throws(AppleError) in
                let place = try self.place()
                guard let text = try BodyValue.fields(call.body)["messageIdentifier"]?.string else {
                    throw .generalBadRequest
                }
                let id = try identifier(text)
                guard state.messages[id] != nil else { throw .messageNotFound }
                state.defaults[place] = id
            }
        case ("DELETE", "default/{productId}/{id}"):
            try change { state throws(AppleError) in
                guard state.defaults.removeValue(forKey: try place()) != nil else { throw .defaultMessageNotFound }
            }
        case ("PUT", "realtime/url"):
            try change { state throws(AppleError) in
                guard let url = try BodyValue.fields(call.body)["realtimeURL"]?.string, url.hasPrefix("https://"),
                    url.utf8.count <= 256
                else { throw .badRealtimeURL }
                state.realtimeURL = url
            }
        case ("DELETE", "realtime/url"):
            try change { state throws(AppleError) in
                guard state.realtimeURL != nil else { throw .realtimeURLNotFound }
                state.realtimeURL = nil
            }
        case ("POST", "performanceTest"): return try startPerformanceTest()
        default: return try readMessaging()
        }
        return answer(status: 200)
    }

    private func change(_ edit: (inout MessagingState) throws(AppleError) -> Void) throws(AppleError) {
        try ledger.submit { store throws(AppleError) -> (Void, [LedgerLine]) in
            var state = store.messaging[lane] ?? MessagingState()
            try edit(&state)
            return ((), [LedgerLine(messaging: .init(app: app, environment: environment, state: state))])
        }
    }

    /// An identifier of the caller's choice, lower case.
    private func identifier(_ text: String) throws(AppleError) -> String {
        guard let uuid = UUID(uuidString: text) else { throw .generalBadRequest }
        return uuid.uuidString.lowercased()
    }

    /// The key of a default message.
    private func place() throws(AppleError) -> String {
        guard (1...255).contains(call.productId.utf8.count) else { throw .invalidProductId }
        let isLocale = call.id.utf8.allSatisfy {
            (0x41...0x5A).contains($0) || (0x61...0x7A).contains($0) || (0x30...0x39).contains($0)
                || $0 == UInt8(ascii: "-")
        }
        guard (2...35).contains(call.id.utf8.count), isLocale else { throw .invalidLocale }
        return "\(call.productId)/\(call.id)"
    }

    // MARK: Uploading

    private func upload(imageTo state: inout MessagingState) throws(AppleError) {
        let id = try identifier(call.id)
        guard call.body.starts(with: [0x89, 0x50, 0x4E, 0x47, 0x0D, 0x0A, 0x1A, 0x0A]) else { throw .invalidImage }
        let size = try call.value("imageSize", else: .badImageSize) ?? "FULL_SIZE"
        guard ["FULL_SIZE", "BULLET_POINT"].contains(size) else { throw .badImageSize }
        guard state.images[id] == nil else { throw .imageAlreadyExists }
        guard state.images.count < MessagingState.itemsMax else { throw .tooManyImages }
        state.images[id] = size
    }

    private func upload(messageTo state: inout MessagingState) throws(AppleError) {
        let id = try identifier(call.id)
        let fields = try BodyValue.fields(call.body)
        guard let header = fields["header"]?.string, let body = fields["body"]?.string else {
            throw .generalBadRequest
        }
        guard header.count <= 66 else { throw .headerTooLong }
        guard body.count <= 144 else { throw .bodyTooLong }
        var images: [String] = []
        if let image = fields["image"]?.object { images.append(try shown(image, in: state)) }
        switch fields["headerPosition"]?.string {
        case nil, "ABOVE_BODY": break
        case "ABOVE_IMAGE": guard !images.isEmpty else { throw .aboveImageRequiresImage }
        default: throw .generalBadRequest
        }
        let points = fields["bulletPoints"]?.array ?? []
        guard points.count <= 5 else { throw .tooManyBulletPoints }
        for point in points {
            guard let point = point.object, let text = point["text"]?.string else { throw .generalBadRequest }
            guard text.count <= 66 else { throw .bulletPointTooLong }
            images.append(try shown(point, in: state))
        }
        guard state.messages[id] == nil else { throw .messageAlreadyExists }
        guard state.messages.count < MessagingState.itemsMax else { throw .tooManyMessages }
        state.messages[id] = images
    }

    /// The image that a part of a message shows.
    private func shown(_ part: [String: BodyValue], in state: MessagingState) throws(AppleError) -> String {
        guard let text = part["imageIdentifier"]?.string, let alternative = part["altText"]?.string else {
            throw .generalBadRequest
        }
        guard alternative.count <= 150 else { throw .altTextTooLong }
        let id = try identifier(text)
        guard state.images[id] != nil else { throw .imageNotFound }
        return id
    }

    // MARK: Reading

    private func readMessaging() throws(AppleError) -> AppleAnswer {
        let state = ledger.read { $0.messaging[lane] } ?? MessagingState()
        switch call.pattern {
        case "image/list":
            return list("imageIdentifiers", state.images.keys) { id, json in
                json.field("imageIdentifier", id)
                json.field("imageState", "APPROVED")
                json.field("imageSize", state.images[id] ?? "FULL_SIZE")
            }
        case "message/list":
            return list("messageIdentifiers", state.messages.keys) { id, json in
                json.field("messageIdentifier", id)
                json.field("messageState", "APPROVED")
            }
        case "default/{productId}/{id}":
            guard let id = state.defaults[try place()] else { throw .defaultMessageNotFound }
            return answer { $0.field("messageIdentifier", id) }
        case "realtime/url":
            guard let url = state.realtimeURL else { throw .realtimeURLNotFound }
            return answer { $0.field("realtimeURL", url) }
        default:
            guard UUID(uuidString: call.id) != nil else { throw .invalidRequestId }
            guard let target = state.tests[call.id] else { throw .performanceTestNotFound }
            return answer { json in
                json.field("config", object: Self.writePerformanceTest)
                json.field("target", target)
                json.field("result", "PASS")
                json.field("successRate", 100)
                json.field("numPending", 0)
                json.field(
                    "responseTimes",
                    object: { times in
                        for name in ["average", "p50", "p90", "p95", "p99"] { times.field(name, 1) }
                    })
                json.field("failures", object: { _ in })
            }
        }
    }

    private func list(
        _ name: String, _ ids: some Sequence<String>, _ write: (String, inout JSONWriter) -> Void
    ) -> AppleAnswer {
        answer { json in
            json.field(
                name,
                array: { array in
                    for id in ids.sorted() { array.element { write(id, &$0) } }
                })
        }
    }

    /// Apple tests in the sandbox alone.
    private func startPerformanceTest() throws(AppleError) -> AppleAnswer {
        let id = try BodyValue.fields(call.body)["originalTransactionId"]?.string ?? ""
        guard environment == .sandbox, SaleRequest.isTransactionId(id) else { throw .invalidPerformanceTest }
        let request = UUID().uuidString.lowercased()
        try change { state throws(AppleError) in
            guard let url = state.realtimeURL else { throw .realtimeURLNotFound }
            state.tests[request] = url
        }
        return answer { json in
            json.field("config", object: Self.writePerformanceTest)
            json.field("requestId", request)
        }
    }

    private static func writePerformanceTest(_ json: inout JSONWriter) {
        json.field("maxConcurrentRequests", 1)
        json.field("totalRequests", 1)
        json.field("totalDuration", 1000)
        json.field("responseTimeThreshold", 1000)
        json.field("successRateThreshold", 100)
    }
}
