package h2grpc

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/gzip" // registers gzip
)

// decompress is the text of a compressed message: maxMessage bytes at most, as it is sent and as it is read.
func (s *stream) decompress(message []byte) ([]byte, *refusal) {
	r, err := encoding.GetCompressor(s.header.encoding).Decompress(bytes.NewReader(message))
	if err != nil {
		return nil, s.refusal(codes.Internal, "grpc: failed to decompress the message: "+err.Error())
	}
	if closer, ok := r.(io.Closer); ok {
		defer closer.Close()
	}
	text, err := io.ReadAll(io.LimitReader(r, maxMessage+1))
	if err != nil {
		return nil, s.refusal(codes.Internal, "grpc: failed to read decompressed data: "+err.Error())
	}
	if len(text) > maxMessage {
		return nil, s.refusal(codes.ResourceExhausted,
			fmt.Sprintf("grpc: received message after decompression larger than max %d", maxMessage))
	}
	return text, nil
}

// beginMessage appends the place of a message's prefix, which seal fills.
func beginMessage(dst []byte) []byte { return append(dst, 0, 0, 0, 0, 0) }

// seal completes a message whose prefix stands at an offset: compressed, if the request was, and with its length.
func (s *stream) seal(b []byte, from int) ([]byte, error) {
	text := b[from+messageHeader:]
	if s.header.encoding != "" && len(text) > 0 {
		var packed bytes.Buffer
		w, err := encoding.GetCompressor(s.header.encoding).Compress(&packed)
		if err == nil {
			_, err = w.Write(text)
		}
		if err == nil {
			err = w.Close()
		}
		if err != nil {
			return b[:from], fmt.Errorf("compressing: %w", err)
		}
		b = append(b[:from+messageHeader], packed.Bytes()...)
		b[from] = 1
	}
	binary.BigEndian.PutUint32(b[from+1:], uint32(len(b)-from-messageHeader))
	return b, nil
}
