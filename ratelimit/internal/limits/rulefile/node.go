package rulefile

import (
	"errors"
	"math"
	"strconv"
	"strings"

	"gatehouse/ratelimit/internal/limits"
)

// kind is the kind of a YAML value: map, list, text and so on.
type kind uint8

const (
	textNode kind = iota
	mapNode
	listNode
)

// node is one YAML value with its position. An alias is resolved to its anchor's node, so one node may be in several
// places, and nodes are not written to once the tree is built. A file of 100,000 rules has more than a million nodes,
// so nodes are small.
type node struct {
	text  string
	pairs []pair
	pos   limits.Pos
	// weight is the number of values in this value, including itself and with each alias counted in full. It is at most
	// maxExpansion more than the number of values in the file. depth is the number of levels.
	weight int32
	depth  int16
	kind   kind
	// plain is set for a scalar without quotes, whose type (number, boolean, …) depends on its text.
	plain bool
}

// pair is a key of a map with its value, or an item of a list, for which key is nil.
type pair struct{ key, value *node }

// scalar is the type that YAML 1.1 gives to a text without quotes.
type scalar uint8

const (
	stringScalar scalar = iota
	nullScalar
	boolScalar
	intScalar
	floatScalar
)

// what returns the words by which messages call the node's kind.
func (n *node) what() string {
	switch n.kind {
	case mapNode:
		return "a map"
	case listNode:
		return "a list"
	}
	switch n.scalar() {
	case nullScalar:
		return "null"
	case boolScalar:
		return "a boolean"
	case intScalar:
		return "a number"
	case floatScalar:
		return "a number with a fraction"
	}
	return "a text"
}

// whatText returns the words for the node's kind and, for a scalar, its text.
func (n *node) whatText() string {
	if n.kind == textNode && !n.isNull() {
		return n.what() + " (" + n.shown() + ")"
	}
	return n.what()
}

// shown returns the node's content as messages repeat it.
func (n *node) shown() string {
	switch n.kind {
	case mapNode:
		return "{…}"
	case listNode:
		return "[…]"
	}
	if n.plain {
		return limits.OneLine(n.text)
	}
	return limits.Quote(n.text)
}

func (n *node) scalar() scalar {
	if !n.plain {
		return stringScalar
	}
	return scalarOf(n.text)
}

func (n *node) isNull() bool { return n.kind == textNode && n.plain && isNullText(n.text) }

func isNullText(s string) bool {
	switch s {
	case "", "~", "null", "Null", "NULL":
		return true
	}
	return false
}

func scalarOf(s string) scalar {
	if isNullText(s) {
		return nullScalar
	}
	if _, ok := yamlBool(s); ok {
		return boolScalar
	}
	if c := s[0]; c != '+' && c != '-' && c != '.' && (c < '0' || c > '9') {
		return stringScalar
	}
	if _, _, ok := yamlInt(s); ok {
		return intScalar
	}
	if _, ok := yamlFloat(s); ok {
		return floatScalar
	}
	return stringScalar
}

// yamlBool parses the booleans of YAML 1.1: true, yes, on and their opposites. Unlike in YAML 1.1, the letters y and n
// are texts.
func yamlBool(s string) (value, ok bool) {
	switch s {
	case "true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON":
		return true, true
	case "false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF":
		return false, true
	}
	return false, false
}

// yamlInt parses an integer of YAML 1.1: decimal; hexadecimal, binary or octal after 0x, 0b or 0o; or octal after a 0.
// There may be underscores between digits. A number beyond 64 bits is an integer, too; value is then the largest
// uint64.
func yamlInt(s string) (value uint64, negative, ok bool) {
	value, negative, err := parseYAMLInt(s)
	return value, negative, err == nil || errors.Is(err, strconv.ErrRange)
}

// fits64 reports whether an integer in YAML's notation fits into an int64 or a uint64.
func fits64(s string) bool {
	value, negative, err := parseYAMLInt(s)
	return err == nil && (!negative || value <= 1<<63)
}

func parseYAMLInt(s string) (value uint64, negative bool, err error) {
	digits := s
	if digits[0] == '+' || digits[0] == '-' {
		negative = digits[0] == '-'
		digits = digits[1:]
	}
	base := 10
	switch {
	case strings.HasPrefix(digits, "0x"):
		base, digits = 16, digits[2:]
	case strings.HasPrefix(digits, "0b"):
		base, digits = 2, digits[2:]
	case strings.HasPrefix(digits, "0o"):
		base, digits = 8, digits[2:]
	case len(digits) > 1 && digits[0] == '0':
		base, digits = 8, digits[1:]
	}
	if strings.Contains(digits, "_") {
		digits = strings.ReplaceAll(digits, "_", "")
	}
	if digits == "" || digits[0] == '+' || digits[0] == '-' {
		return 0, false, strconv.ErrSyntax
	}
	value, err = strconv.ParseUint(digits, base, 64)
	return value, negative, err
}

// yamlFloat parses a floating-point number in YAML's notation: digits with a point or an exponent, .inf or .nan.
func yamlFloat(s string) (float64, bool) {
	unsigned := strings.TrimLeft(s, "+-")
	if len(s)-len(unsigned) > 1 || unsigned == "" {
		return 0, false
	}
	switch unsigned {
	case ".inf", ".Inf", ".INF":
		if s[0] == '-' {
			return math.Inf(-1), true
		}
		return math.Inf(1), true
	case ".nan", ".NaN", ".NAN":
		return math.NaN(), true
	}
	if strings.Trim(unsigned, "0123456789.eE+-_") != "" || !strings.ContainsAny(unsigned, "0123456789") {
		return 0, false
	}
	f, err := strconv.ParseFloat(strings.ReplaceAll(s, "_", ""), 64)
	return f, err == nil
}
