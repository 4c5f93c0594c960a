// Package totp makes and checks the six digits of an authenticator app: RFC 6238 with HMAC-SHA-1, steps of 30 s and
// six digits, which every app knows.
//
// It stores nothing: the caller stores the sealed key, and the step that was accepted last.
package totp

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha1"
	"crypto/subtle"
	"encoding/base32"
	"encoding/binary"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"rsc.io/qr"
)

const (
	// KeySize is the length of a key in bytes: the length of the hash, as RFC 4226 section 4 recommends.
	KeySize = sha1.Size
	// Digits is the length of a code.
	Digits = 6
	// Period is how long a step takes.
	Period = 30 * time.Second
	// skew is how many steps the user's clock may be off, either way (RFC 6238 section 5.2).
	skew = 1
)

// NewKey returns a random key.
func NewKey() []byte {
	key := make([]byte, KeySize)
	rand.Read(key) // never fails (crypto/rand)
	return key
}

var base32Plain = base32.StdEncoding.WithPadding(base32.NoPadding)

// Text returns a key in the form that people type: Base32 in upper case without padding.
func Text(key []byte) string { return base32Plain.EncodeToString(key) }

// Step returns the number of the step that contains a time, counted from 1970.
func Step(t time.Time) int64 { return t.Unix() / int64(Period/time.Second) }

// Code returns the code of a step.
func Code(key []byte, step int64) string {
	return fmt.Sprintf("%0*d", Digits, value(key, step)%1_000_000)
}

// value returns the 31-bit number of RFC 4226 section 5.3.
func value(key []byte, step int64) uint32 {
	h := hmac.New(sha1.New, key)
	var counter [8]byte
	binary.BigEndian.PutUint64(counter[:], uint64(step))
	h.Write(counter[:])
	sum := h.Sum(nil)
	at := sum[len(sum)-1] & 0x0f
	return binary.BigEndian.Uint32(sum[at:]) & 0x7fffffff
}

// Check finds the step of a code. It accepts the present step, the step before and the step after, but only steps after
// last, the step that was accepted last. It ignores blanks around the code. It always compares all steps, each in
// constant time.
func Check(key []byte, code string, now time.Time, last int64) (step int64, ok bool) {
	code = strings.TrimSpace(code)
	present := Step(now)
	for s := present - skew; s <= present+skew; s++ {
		same := subtle.ConstantTimeCompare([]byte(Code(key, s)), []byte(code)) == 1
		if same && s > last && !ok {
			step, ok = s, true
		}
	}
	return step, ok
}

// URI returns the text that an app reads from the QR code (Google Authenticator's Key Uri Format). issuer is the site,
// account the user's name there.
func URI(issuer, account string, key []byte) string {
	return "otpauth://totp/" + escape(issuer) + ":" + escape(account) +
		"?algorithm=SHA1&digits=6&issuer=" + escape(issuer) + "&period=30&secret=" + Text(key)
}

// escapeMore escapes more than a path requires: a colon would end a name, and some apps read a plus as a blank.
var escapeMore = strings.NewReplacer(":", "%3A", "&", "%26", "=", "%3D", "+", "%2B")

func escape(text string) string { return escapeMore.Replace(url.PathEscape(text)) }

const (
	module = 3 // pixels
	quiet  = 4 // modules around the code (ISO/IEC 18004 section 6.3.8)
)

// ErrTooLong: the text is too long for a QR code.
var ErrTooLong = errors.New("totp: too long for a QR code")

// SVG returns a QR code of text as an SVG document. The client library puts "data:image/svg+xml;utf-8," before the
// document, so it contains no "#" and no "%", which have a meaning in URLs.
func SVG(text string) (string, error) {
	code, err := encode(text)
	if err != nil {
		return "", err
	}
	size := (code.Size + 2*quiet) * module
	var b strings.Builder
	b.Grow(64 * code.Size * code.Size / 4)
	fmt.Fprintf(&b, "<?xml version=\"1.0\"?>\n<svg width=\"%d\" height=\"%d\" xmlns=\"http://www.w3.org/2000/svg\">\n",
		size, size)
	fmt.Fprintf(&b, "<rect x=\"0\" y=\"0\" width=\"%d\" height=\"%d\" style=\"fill:white;stroke:none\"/>\n", size, size)
	for y := range code.Size {
		for x := 0; x < code.Size; x++ {
			from := x
			for x < code.Size && code.Black(x, y) {
				x++
			}
			if x > from { // adjacent black modules are one rectangle
				fmt.Fprintf(&b,
					"<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" style=\"fill:black;stroke:none\"/>\n",
					(from+quiet)*module, (y+quiet)*module, (x-from)*module, module)
			}
		}
	}
	b.WriteString("</svg>\n")
	return b.String(), nil
}

// encode uses the highest level of error correction at which the text fits.
func encode(text string) (*qr.Code, error) {
	for _, level := range []qr.Level{qr.H, qr.Q, qr.M, qr.L} {
		if code, err := qr.Encode(text, level); err == nil {
			return code, nil
		}
	}
	return nil, ErrTooLong
}
