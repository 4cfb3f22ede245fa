package member

import (
	"context"
	"errors"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	codec "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/stats"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Bounds of the form of one request. In memory, an empty record of two bytes has a hundred. etcd accepts 128 guards and twice as many
// operations: 3,000 records.
const (
	recordsAtMost = 8192 // through all levels
	levelsAtMost  = 16
)

var errRecords = errors.New("the request has too many records")

// decoder decodes requests of few records. It is the codec of the server, which knows no caller, and counts what it refused as its
// observer of calls.
type decoder struct {
	encoding.CodecV2
	of             *bounds
	sent, received prometheus.Counter
}

func newDecoder(of *bounds) decoder {
	return decoder{encoding.GetCodecV2(codec.Name), of, counter("sent_bytes_total", "The total number of bytes sent to grpc clients."),
		counter("received_bytes_total", "The total number of bytes received from grpc clients.")}
}

// counter returns a counter of etcd's codec, which this one replaces.
func counter(name, help string) prometheus.Counter {
	c := prometheus.NewCounter(prometheus.CounterOpts{Namespace: "etcd", Subsystem: "network", Name: "client_grpc_" + name, Help: help})
	var registered prometheus.AlreadyRegisteredError
	if errors.As(prometheus.Register(c), &registered) {
		if of, is := registered.ExistingCollector.(prometheus.Counter); is {
			return of
		}
	}
	return c
}

// Marshal encodes an answer.
func (d decoder) Marshal(v any) (mem.BufferSlice, error) {
	a, held := v.(*answer)
	if held {
		a.watch()
		v = a.Message
	}
	data, err := d.CodecV2.Marshal(v)
	d.sent.Add(float64(data.Len()))
	if !held || err != nil {
		return data, err
	}
	a.encoded = data.MaterializeToBuffer(mem.DefaultBufferPool())
	data.Free()
	whole := a.encoded.ReadOnlyData()
	return mem.BufferSlice{mem.NewBuffer(&whole, a)}, nil
}

// Unmarshal decodes a request unless its records would fill the memory of serve.
func (d decoder) Unmarshal(data mem.BufferSlice, v any) error {
	m, is := v.(proto.Message)
	if !is {
		return d.CodecV2.Unmarshal(data, v)
	}
	whole := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer whole.Free()
	d.received.Add(float64(whole.Len()))
	left := recordsAtMost
	if count(whole.ReadOnlyData(), m.ProtoReflect().Descriptor(), levelsAtMost, &left); left < 0 {
		return errRecords
	}
	return proto.Unmarshal(whole.ReadOnlyData(), m)
}

// count takes the records of a message from what is left, until that is negative. It ends at a malformed one, as its decoding does.
func count(b []byte, of protoreflect.MessageDescriptor, levels int, left *int) {
	if levels == 0 {
		*left = -1
	}
	for len(b) > 0 && *left >= 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return
		}
		size := protowire.ConsumeFieldValue(number, kind, b[n:])
		if size < 0 {
			return
		}
		*left--
		if field := of.Fields().ByNumber(number); field != nil && kind == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(b[n:])
			switch {
			case field.Message() != nil:
				count(value, field.Message(), levels-1, left)
			case field.IsList() && field.Kind() != protoreflect.BytesKind && field.Kind() != protoreflect.StringKind: // numbers of a byte or more
				*left -= len(value)
			}
		}
		b = b[n+size:]
	}
}

// HandleRPC counts a call that the decoder refused.
func (d decoder) HandleRPC(ctx context.Context, s stats.RPCStats) {
	if end, is := s.(*stats.End); is && end.Error != nil && strings.Contains(end.Error.Error(), errRecords.Error()) {
		call, _ := grpc.Method(ctx)
		d.of.refuse(userOf(ctx), call)
	}
}

// TagRPC, TagConn and HandleConn do nothing.
func (decoder) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (decoder) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (decoder) HandleConn(context.Context, stats.ConnStats)                       {}
