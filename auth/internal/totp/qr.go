package totp

import (
	"errors"
	"fmt"
	"strings"

	"rsc.io/qr"
)

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
