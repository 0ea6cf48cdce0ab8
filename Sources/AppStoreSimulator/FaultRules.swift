/// A request for a fault, as a rule keeps it.
protocol FaultRuleRequest: Sendable {
    /// How often the fault fires; nil: until it is deleted.
    var count: Int? { get }
    /// The probability with which it fires; nil: each time.
    var percent: Double? { get }
    /// Begins the random numbers anew.
    var seed: Int64? { get }

    func validate() throws(ControlError)
}

extension FaultRequest: FaultRuleRequest {}
extension NotificationFaultRequest: FaultRuleRequest {}

/// The rules of a fault script, in the order in which they were added.
struct FaultRules<Request: FaultRuleRequest>: Sendable {
    /// A rule, and how often it has fired.
    struct Rule: Sendable {
        let id: Int
        let request: Request
        var remaining: Int?
        var fired = 0
    }

    /// How many rules may stand at once.
    private let rulesMax = 1000
    /// Rules that are used up (`remaining` 0) stay while there is room.
    private(set) var rules: [Rule] = []
    private var nextId = 1
    var random: SplitMix64

    init(seed: UInt64) {
        random = SplitMix64(seed: seed)
    }

    /// Adds a rule and returns its id.
    mutating func add(_ request: Request) throws(ControlError) -> Int {
        try request.validate()
        if rules.count >= rulesMax { rules.removeAll { $0.remaining == 0 } }
        guard rules.count < rulesMax else { throw ControlError(status: 503, "too many faults: \(rulesMax)") }
        if let seed = request.seed { random = SplitMix64(seed: UInt64(bitPattern: seed)) }
        defer { nextId += 1 }
        rules.append(Rule(id: nextId, request: request, remaining: request.count))
        return nextId
    }

    /// Removes all rules and returns how many there were.
    mutating func removeAll() -> Int {
        defer { rules = [] }
        return rules.count
    }

    /// Removes one rule; false if there is none.
    mutating func remove(_ id: Int) -> Bool {
        guard let index = rules.firstIndex(where: { $0.id == id }) else { return false }
        rules.remove(at: index)
        return true
    }

    /// Whether a rule whose request matches fires now. Counts it.
    mutating func fires(_ index: Int) -> Bool {
        guard rules[index].remaining != 0 else { return false }
        if let percent = rules[index].request.percent, random.unit() * 100 >= percent { return false }
        rules[index].fired += 1
        if let remaining = rules[index].remaining { rules[index].remaining = remaining - 1 }
        return true
    }
}
