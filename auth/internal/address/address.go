// Package address defines what an e-mail address and a phone number may look like, and what form of them is stored
// and compared (docs/accounts.md#addresses).
//
// It checks the text only: nothing is trimmed, no plus-label or dot is folded, no name is looked up, and a valid
// address need not exist.
package address

import (
	"errors"
	"strings"
)

//lint:file-ignore ST1005 the texts of refusals are sentences because the client is shown them

// Why an address is refused.
var (
	ErrNoEmail     = errors.New("An email address is required")
	ErrLongEmail   = errors.New("An email address is too long")
	ErrEmailFormat = errors.New("Unable to validate email address: invalid format")
	ErrPhoneFormat = errors.New("Invalid phone number format (E.164 required)")
)

// Lengths in bytes, which are also characters in a valid address.
const (
	maxEmail = 255
	maxLabel = 63 // RFC 1035 section 2.3.4
	minPhone = 2
	maxPhone = 15 // E.164
)

// Email returns the stored form of an address, in lower case.
func Email(text string) (string, error) {
	switch {
	case text == "":
		return "", ErrNoEmail
	case len(text) > maxEmail:
		return "", ErrLongEmail
	}
	local, domain, ok := strings.Cut(text, "@")
	if !ok || local == "" || !all(local, isLocal) || !isDomain(domain) {
		return "", ErrEmailFormat
	}
	return strings.ToLower(text), nil
}

// Fold returns the form in which an unchecked address is looked up: at a sign-in by password a malformed address is
// just unknown.
func Fold(email string) string { return strings.ToLower(email) }

// isDomain reports whether text consists of labels of letters, digits and inner hyphens. A single label is enough.
func isDomain(text string) bool {
	for label := range strings.SplitSeq(text, ".") {
		if label == "" || len(label) > maxLabel || !all(label, isLabel) || label[0] == '-' ||
			label[len(label)-1] == '-' {
			return false
		}
	}
	return true
}

func all(text string, ok func(byte) bool) bool {
	for i := range len(text) {
		if !ok(text[i]) {
			return false
		}
	}
	return true
}

func isLocal(c byte) bool {
	return isLabel(c) && c != '-' || strings.IndexByte(".!#$%&'*+/=?^_`{|}~-", c) >= 0
}

func isLabel(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || isDigit(c) || c == '-'
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// Phone returns the stored form of a number: the digits of E.164 without the plus.
func Phone(text string) (string, error) {
	number := FoldPhone(text)
	if len(number) < minPhone || len(number) > maxPhone || number[0] == '0' || !all(number, isDigit) {
		return "", ErrPhoneFormat
	}
	return number, nil
}

// FoldPhone removes the leading plus and all blanks, and checks nothing.
func FoldPhone(text string) string {
	return strings.ReplaceAll(strings.TrimPrefix(text, "+"), " ", "")
}
