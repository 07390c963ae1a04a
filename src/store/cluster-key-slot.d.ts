// The package ships no types: CRC16 of a key's hash tag, modulo 16,384.
declare module 'cluster-key-slot' {
  export default function keySlot(key: string): number
}
