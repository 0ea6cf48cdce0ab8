import Testing

@testable import Settings

/// Goal: a setting is a duration only if it is written as one. ConfigurationTests holds how durations are read.
@Suite struct DurationTests {
    @Test(
        "nothing else is a duration",
        arguments: ["", "7", "d", "7 d", "7D", "1.5h", "-1s", "+1s", "1w", "1d2h", "1000001s", "0x1s", "７d", "7days"])
    func noDurations(text: String) {
        #expect(Duration(setting: text) == nil)
    }
}
