import Caching
import Encoding
import Testing

/// Goal: entries that are read stay, other entries go, and the size has a bound. Method: generations of three.
@Suite struct RecentDictionaryTests {
    @Test("what is asked for in each generation is never dropped")
    func asked() {
        var values = RecentDictionary<Int, String>(generationMax: 3)
        values[0] = "kept"
        for number in 1..<100 {
            values[number] = "passing"
            #expect(values[0] == "kept", "\(number)")
        }
        #expect(values[1] == nil && values[99] == "passing")
    }

    @Test("of those that nobody asks for no more than two generations are kept")
    func bound() {
        var values = RecentDictionary<Int, Int>(generationMax: 3)
        for number in 0..<100 { values[number] = number }
        let kept = (0..<100).filter { values[$0] != nil }
        #expect(kept.count >= 3 && kept.allSatisfy { $0 >= 94 }, "\(kept)")
    }

    @Test("a value is replaced where it stands, and can be taken away")
    func replaced() {
        var values = RecentDictionary<String, Int>(generationMax: 2)
        for name in ["a", "b", "c"] { values[name] = 1 }
        values["a"] = 2
        #expect(values["a"] == 2)
        values["a"] = nil
        #expect(values["a"] == nil && values["c"] == 1)
    }
}
