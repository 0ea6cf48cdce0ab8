/// Labels as they stand between braces: names made valid, values escaped, in the order of the names.
struct PrometheusLabels: Hashable, Sendable {
    /// The longest value; a longer one is cut. Labels come from closed lists and are no texts.
    static let valueMax = 200

    let text: String

    init(_ dimensions: [(String, String)]) {
        text = dimensions.map { (PrometheusText.name($0.0, allowsColon: false), $0.1) }
            .sorted { $0.0 < $1.0 }
            .map { "\($0.0)=\"\(PrometheusText.escaped(String($0.1.prefix(Self.valueMax))))\"" }
            .joined(separator: ",")
    }

    func adding(_ name: String, _ value: String) -> String {
        text.isEmpty ? "\(name)=\"\(value)\"" : "\(text),\(name)=\"\(value)\""
    }
}

/// Writes Prometheus' text format 0.0.4.
struct PrometheusText {
    private(set) var output = ""

    mutating func begin(_ name: String, _ kind: PrometheusSeries.Kind) {
        if let help = MetricHelp.texts[name] { output += "# HELP \(name) \(help)\n" }
        output += "# TYPE \(name) \(kind.word)\n"
    }

    mutating func sample(_ name: String, _ labels: String, _ value: String) {
        output += labels.isEmpty ? "\(name) \(value)\n" : "\(name){\(labels)} \(value)\n"
    }

    /// `[a-zA-Z_:][a-zA-Z0-9_:]*` for metrics, without the colon for labels; anything else becomes `_`.
    static func name(_ text: String, allowsColon: Bool) -> String {
        var name = String(
            text.unicodeScalars.map { scalar -> Character in
                switch scalar {
                case "a"..."z", "A"..."Z", "0"..."9", "_": Character(scalar)
                case ":": allowsColon ? ":" : "_"
                default: "_"
                }
            })
        if name.first?.isNumber ?? true { name = "_" + name }
        return name
    }

    static func escaped(_ value: String) -> String {
        var escaped = ""
        for character in value.unicodeScalars {
            switch character {
            case "\\": escaped += "\\\\"
            case "\"": escaped += "\\\""
            case "\n": escaped += "\\n"
            default: escaped.unicodeScalars.append(character)
            }
        }
        return escaped
    }

    /// A whole number without its `.0`, other numbers as Swift writes them. Go, which reads the text, knows all of
    /// these forms.
    static func number(_ value: Double) -> String {
        if value.isNaN { return "NaN" }
        if value.isInfinite { return value < 0 ? "-Inf" : "+Inf" }
        if let whole = Int64(exactly: value) { return String(whole) }
        return "\(value)"
    }
}
