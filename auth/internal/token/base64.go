package token

import (
	"encoding/base64"
	"strings"
)

// b64 refuses the stray bits that give one 32-byte signature four spellings.
var b64 = base64.RawURLEncoding.Strict()

// breaksLine says whether text holds CR or LF, which the decoder skips even in strict mode.
func breaksLine(text string) bool {
	return strings.IndexByte(text, '\n') >= 0 || strings.IndexByte(text, '\r') >= 0
}

// decode64 decodes base64url without padding, in its one canonical spelling.
func decode64(text string) ([]byte, bool) {
	if breaksLine(text) {
		return nil, false
	}
	out, err := b64.DecodeString(text)
	return out, err == nil
}
