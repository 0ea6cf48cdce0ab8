/// A dictionary that forgets entries that were not asked for lately, so that its size has a bound whatever comes.
///
/// It has two generations of at most `generationMax` entries. An entry that is asked for moves into the young
/// generation. When the young generation is full, the old one is dropped.
public struct RecentDictionary<Key: Hashable & Sendable, Value: Sendable>: Sendable {
    public let generationMax: Int
    private var young: [Key: Value] = [:]
    private var old: [Key: Value] = [:]

    public init(generationMax: Int) {
        self.generationMax = generationMax
    }

    public subscript(key: Key) -> Value? {
        mutating get {
            if let value = young[key] { return value }
            guard let value = old.removeValue(forKey: key) else { return nil }
            self[key] = value
            return value
        }
        set {
            if newValue != nil, young[key] == nil, young.count >= generationMax {
                old = young
                young = [:]
            }
            old[key] = nil
            young[key] = newValue
        }
    }
}
