import Encoding

/// What `makegood events listen` took so far: it tells an event that comes again, and one that is missing before
/// another. It remembers the newest ``eventsMax`` events.
struct ReceivedWebhooks {
    static let eventsMax = 10_000

    /// Events that were taken, without those that came again.
    private(set) var taken = 0
    private(set) var repeated = 0
    private(set) var known: Set<String> = []
    private var newest: [String] = []
    private var oldest = 0

    /// Notes an event as taken, and describes it.
    mutating func take(_ event: JSONValue) -> String {
        var notes: [String] = []
        if let previous = event["delivery"]?["previousId"].flatMap(Self.word), taken > 0, !known.contains(previous) {
            notes.append("after \(previous), which never came here")
        }
        if let id = event["id"].flatMap(Self.word) {
            if remember(id) {
                taken += 1
            } else {
                repeated += 1
                notes.append("came before: hand nothing out")
            }
        }
        return Self.line(event, notes)
    }

    /// - Returns: false: the id is known.
    private mutating func remember(_ id: String) -> Bool {
        guard known.insert(id).inserted else { return false }
        if newest.count < Self.eventsMax {
            newest.append(id)
        } else {
            known.remove(newest[oldest])
            newest[oldest] = id
            oldest = (oldest + 1) % Self.eventsMax
        }
        return true
    }

    /// The type, the app and the user, what it is about, the goods, its number and its try, in one line.
    static func line(_ event: JSONValue, _ notes: [String] = []) -> String {
        var parts = [event["type"].flatMap(word) ?? "an event without a type"]
        parts.append([event["appId"], event["userId"]].compactMap { $0.flatMap(word) }.joined(separator: "/"))
        if let id = event["transactionId"].flatMap(word) { parts.append("transaction \(id)") }
        let data = event["data"]
        if let id = data?["orderId"].flatMap(word) { parts.append("order \(id)") }
        if case .array(let goods)? = data?["goods"] {
            let amounts = goods.compactMap { part in
                part["amount"].flatMap(word).flatMap { amount in part["item"].flatMap(word).map { "\(amount) \($0)" } }
            }
            if !amounts.isEmpty { parts.append(amounts.joined(separator: ", ")) }
        }
        if let reason = data?["reason"].flatMap(word) { parts.append(reason) }
        let delivery = event["delivery"]
        if let number = delivery?["sequence"].flatMap(word) { parts.append("number \(number)") }
        if delivery?["replay"] != nil { parts.append("replayed") }
        if let attempt = delivery?["attempt"].flatMap(word), attempt != "1" { parts.append("try \(attempt)") }
        return (parts.filter { !$0.isEmpty } + notes).joined(separator: "  ")
    }

    /// A text without what would change the terminal, or a number.
    private static func word(_ value: JSONValue) -> String? {
        switch value {
        case .string(let text):
            String(String.UnicodeScalarView(text.unicodeScalars.map { $0.properties.isPrintable ? $0 : "?" }))
        case .number(let text): text
        default: nil
        }
    }
}

extension Unicode.Scalar.Properties {
    fileprivate var isPrintable: Bool {
        switch generalCategory {
        case .control, .format, .lineSeparator, .paragraphSeparator, .surrogate, .privateUse, .unassigned: false
        default: true
        }
    }
}
